"""Tables, the plot, the page and the record."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import cell

import page
from cases import CASES, OPS, TRANSPORTS
from columns import COLUMNS, NAMES
from plot import STYLES, svg
from record import Record, dump, load
from table import behind, duration, durations, markdown, number, text

SVG = "{http://www.w3.org/2000/svg}"


def empty() -> Record:
    return Record("make bench-peers", {"cpus": 2, "model": "m", "kernel": "6.1"}, {"kvxfer": "0.1.0"})


def test_numbers_have_three_digits() -> None:
    assert [number(v) for v in (0.0123, 0.5, 1.234, 12.34, 123.4, 1234.5)] == [
        *("0.0123", "0.5", "1.23", "12.3", "123", "1234"),
    ]
    assert duration(12.5) == "12.5 us"
    assert duration(3600) == "3.60 ms"


def test_the_text_has_every_way_and_every_reason(record: Record) -> None:
    lines = text(record).splitlines()
    assert len([line for line in lines if line.startswith(("tcp ", "host "))]) == len(record.cells)
    shown = "\n".join(lines)
    assert "kvxfer, prepared, tcp (prepared): no prepared transfers (1x4KiB write" in shown
    assert "Mooncake, host: it has nothing (" in shown
    assert "plain UCX (shm by copy): it ended" in shown
    assert "one bit that was changed on purpose was found" in shown


def test_the_markdown_shows_the_fastest_way_and_marks_the_fastest_column(record: Record) -> None:
    shown = markdown(record)
    rows = [line for line in shown.splitlines() if line.startswith("| 1024x4KiB | WRITE |")]
    assert len(rows) == 4  # speed and processor time, twice
    assert "**3.60 ms (3.24-4.32; 30), 1.17** [a]" in rows[0]
    assert "6.00 ms (5.40-7.20; 30), 0.699 |" in rows[0]
    assert "| - |" in rows[0]
    for grid in re.findall(r"(?:^\|.*\n)+", shown, re.M):
        assert len({line.count("|") for line in grid.splitlines()}) == 1
    assert "NIXL: [a] tcp, [b] tcp, SGL" in shown
    assert "| kvxfer, raw lists | tcp | 3.00 ms | 90 us | 400 us | 30 ms | 50 MiB | 0.4% |" in shown


def test_rows_in_which_a_peer_is_faster_are_told(record: Record) -> None:
    assert len(behind(record)) == len(record.rows())
    assert behind(record)[0] == "tcp 1x4KiB write: 20 us, nixl 12 us (1.67 times)"
    record.cells += [cell(*row, "kvxfer-blocks", "blocks", 1.0) for row in record.rows()]
    assert behind(record) == []


def test_a_bit_that_was_not_found_is_warned_of(record: Record) -> None:
    first = next(i for i, c in enumerate(record.cells) if c.time_us)
    lost = record.cells[first]
    record.cells[first] = type(lost)(**{**vars(lost), "found": False})
    assert "WARNING: a bit that was changed on purpose was not found in 1 of 24" in text(record)


def test_the_plot_is_well_formed_and_has_every_best_cell(record: Record) -> None:
    root = ElementTree.fromstring(svg(record))
    titles = [t.text or "" for g in root.iter(f"{SVG}g") for t in g.iter(f"{SVG}title")]
    best = [
        found
        for row in record.rows()
        for name in NAMES
        if (found := record.best(*row, name)) is not None and found.time_us is not None
    ]
    assert len(titles) == len(best)
    assert "nixl 1024x4KiB read: 3.60 ms" in titles
    height = float(root.attrib["height"])
    for node in root.iter(f"{SVG}text"):
        if "y" in node.attrib:
            assert 0 <= float(node.attrib["y"]) <= height


def test_every_column_has_a_mark_of_its_own() -> None:
    assert set(STYLES) == set(NAMES)
    assert len({shape for _, shape in STYLES.values()}) == len(STYLES)
    for c in COLUMNS:
        assert set(c.ways) | set(c.absent) == set(TRANSPORTS)


def test_a_run_without_anything_is_shown_too() -> None:
    assert "made by `make bench-peers`" in text(empty())
    assert "made by" not in markdown(empty()).split("- made")[0]
    ElementTree.fromstring(svg(empty()))


def test_all_cases_fit_the_plot() -> None:
    full = empty()
    full.cells = [
        cell(t, c.name, op, name, "w", 5.0 + c.bytes / 5000)
        for t in TRANSPORTS
        for c in CASES
        for op in OPS
        for name in NAMES
    ]
    root = ElementTree.fromstring(svg(full))
    width = float(root.attrib["width"])
    for circle in root.iter(f"{SVG}circle"):
        assert 0 < float(circle.attrib["cx"]) < width


def test_a_record_survives_json(record: Record) -> None:
    assert load(dump(record)) == record
    assert json.loads(dump(record))["cells"][1]["gbps"] == pytest.approx(0.2048)
    with pytest.raises(ValueError, match="format"):
        load("{}")


def test_the_page_keeps_what_is_around_the_markers(record: Record, tmp_path: Path) -> None:
    there = tmp_path / "performance.md"
    there.write_text(f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.write(record, there)
    page.write(record, there)
    words = there.read_text()
    assert words.startswith(f"# Before\n\n{page.BEGIN}\n\n`make bench-peers`\n")
    assert words.endswith(f"{page.END}\n\nafter\n")
    assert "old" not in words
    assert words.count(page.BEGIN) == 1
    ElementTree.fromstring((tmp_path / page.PICTURE).read_text())


@pytest.mark.parametrize("words", ["", page.BEGIN, f"{page.END}{page.BEGIN}", 2 * f"{page.BEGIN}{page.END}"])
def test_a_page_without_both_markers_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        page.replaced(words, "x")


def test_the_project_has_the_page() -> None:
    there = Path(page.__file__).parent.parent.parent / "docs" / "performance.md"
    assert page.replaced(there.read_text(), "x")


def test_durations_share_a_unit() -> None:
    assert durations(cell("tcp", "1x8B", "write", "nixl", "tcp", 1000).time_us) == "1.00 ms (0.9-1.20; 30)"  # type: ignore[arg-type]
