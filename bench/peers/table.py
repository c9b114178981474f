"""The tables of a run, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cases import HOST, TCP, parse
from columns import COLUMNS, OURS, Column
from record import Cell, Record
from spread import Spread

NONE = "-"
SMALL = 64 << 10
"""A list of fewer bytes has no speed in GB/s worth a column; its processor time is that of a transfer."""
TRANSPORT_TITLES = {TCP: "TCP on loop-back", HOST: "two processes of the same host"}
DETAIL = ("1024x4KiB", "1024x16KiB")
"""The list whose submission, footprint and registration are shown: the first of these that was measured, else
the last."""


def number(value: float) -> str:
    """Three digits that matter."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 10 or value < 1 else f"{value:.2f}"


def duration(us: float) -> str:
    """Microseconds, or milliseconds from 1000 on."""
    return f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms"


def durations(s: Spread) -> str:
    """The median, with the quarters in its unit and the number of values: ``3.60 ms (3.52-3.80; 120)``."""
    unit = 1.0 if s.median < 1000 else 1000.0
    return f"{duration(s.median)} ({number(s.p25 / unit)}-{number(s.p75 / unit)}; {s.n})"


def size(n: float) -> str:
    """Bytes in MiB."""
    return f"{number(n / 2**20)} MiB"


def maybe(value: float | None, form: str = "{}") -> str:
    """A number, or NONE."""
    return NONE if value is None else form.format(number(value))


def columns_of(record: Record) -> list[Column]:
    """Those that were tried."""
    there = {c.column for c in record.cells}
    return [c for c in COLUMNS if c.name in there]


def text(record: Record) -> str:
    """Every way of every column, a line each."""
    head = ["TRANSPORT", "CASE", "OP", "ENGINE", "WAY", "MEDIAN", "P25", "P75", "N", "GB/S", "CPU S/GB"]
    head += ["SUBMIT", "PREPARE", "REGISTER", "RSS", "OTHERS"]
    lines = [head]
    for c in record.cells:
        line = [c.transport, c.case, c.op, c.column, c.way]
        if c.time_us is None:
            lines.append(line + [NONE] * (len(head) - len(line)))
            continue
        t = c.time_us
        line += [duration(t.median), duration(t.p25), duration(t.p75), str(t.n)]
        line += [maybe(c.gbps), maybe(c.cpu_s_per_gb)]
        line += [NONE if v is None else duration(v) for v in (c.submit_us, c.prepare_us, c.register_us)]
        line += [NONE if c.rss_bytes is None else size(c.rss_bytes), f"{100 * (c.others or 0):.0f}%"]
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rows = ("  ".join(f.ljust(w) for f, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    plain = [
        f"plain UCX ({u['way']}), {_bytes(u['bytes'])}: put {duration(u['put_us'])}, "
        f"get {duration(u['get_us'])}, puts under way {number(u['put_gbps'])} GB/s"
        for u in record.ucx
    ]
    below = [*plain, *marks(record), *reasons(record), *verification(record)]
    return "\n".join([*rows, "", *below]) + "\n"


def markdown(record: Record) -> str:
    """What docs/performance.md shows."""
    shown = columns_of(record)
    out = []
    for transport in dict.fromkeys(t for t, _, _ in record.rows()):
        here = [c for c in shown if any(x.column == c.name for x in record.cells if x.transport == transport)]
        title = TRANSPORT_TITLES[transport]
        out += [f"**{title[0].upper()}{title[1:]}**: median of a transfer (quarters; transfers), GB/s", ""]
        out += _grid(["list", "", *(c.title for c in here)], _speed_rows(record, transport, here))
        if ways := _legend(here, transport):
            out += ["", ways]
        words = "seconds of all the engine's processes for 10^9 bytes; of the smallest lists, of one transfer"
        out += ["", f"Processor time, {title}: {words}", ""]
        out += _grid(["list", "", *(c.title for c in here), "others"], _cpu_rows(record, transport, here))
        out += [""]
    out += _details(record, shown)
    if record.ucx:
        words = "single contiguous blocks, the same one each time; bytes are not compared"
        out += ["", f"Plain UCX (`ucx_perftest`), {words}", ""]
        out += _grid(
            ["block", "way", "put, one at a time", "get, one at a time", "puts under way, GB/s"],
            [
                [
                    *(_bytes(u["bytes"]), u["way"], duration(u["put_us"]), duration(u["get_us"])),
                    number(u["put_gbps"]),
                ]
                for u in record.ucx
            ],
        )
    out += ["", *_items(marks(record) + verification(record) + reasons(record))]
    return "\n".join(out) + "\n"


def marks(record: Record) -> list[str]:
    """What the machine does by itself, and what made the record."""
    m = record.machine
    lines = [
        f"{name}: {number(s.median)} GB/s ({number(s.p25)}-{number(s.p75)}; {s.n})"
        for name, s in record.marks.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    where = f"{m.get('cpus')} processors ({m.get('model')}), Linux {m.get('kernel')}"
    return [
        *lines,
        f"{where}; {versions}",
        f"made by `{record.command}` in {number(record.seconds / 60)} minutes",
    ]


def reasons(record: Record) -> list[str]:
    """Why there is a ``-``; each reason once, with the rows that it is of."""
    titles = {c.name: c.title for c in COLUMNS}
    why: dict[tuple[str, str, str, str], list[str]] = {}
    for c in record.cells:
        if c.error:
            key = (titles.get(c.column, c.column), c.transport, c.way, c.error)
            why.setdefault(key, []).append(f"{c.case} {c.op}")
    lines = []
    for (title, transport, way, error), rows in why.items():
        names = ", ".join(rows) if len(rows) <= 4 else f"{len(rows)} rows"
        lines.append(f"{title}, {transport}{f' ({way})' if way else ''}: {error} ({names})")
    return lines + record.notes


def verification(record: Record) -> list[str]:
    """What was done about the bytes."""
    measured = [c for c in record.cells if c.time_us is not None]
    missed = [c for c in measured if not c.found]
    if not measured:
        return []
    if missed:
        words = "WARNING: a bit that was changed on purpose was not found in"
        return [f"{words} {len(missed)} of {len(measured)} cells"]
    return [
        "bytes were compared in every round of every cell; in each of the "
        f"{len(measured)} cells one bit that was changed on purpose was found"
    ]


def _items(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _bytes(n: int) -> str:
    return parse(f"1x{n}B").name.removeprefix("1x")


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _letter(column: Column, transport: str, way: str) -> str:
    """Names a way where the column has several."""
    ways = column.ways.get(transport, ())
    return f" [{'abcdefgh'[ways.index(way)]}]" if len(ways) > 1 and way in ways else ""


def _legend(shown: Sequence[Column], transport: str) -> str:
    parts = [
        f"{c.title}:{','.join(f'{_letter(c, transport, way)} {way}' for way in c.ways[transport])}"
        for c in shown
        if len(c.ways.get(transport, ())) > 1
    ]
    return f"The fastest way of each row: {'; '.join(parts)}." if parts else ""


def _speed_rows(record: Record, transport: str, shown: Sequence[Column]) -> list[list[str]]:
    rows = []
    for t, case, op in record.rows():
        if t != transport:
            continue
        cells = [record.best(t, case, op, c.name) for c in shown]
        times = [c.time_us.median for c in cells if c and c.time_us]
        row = [case, op.upper()]
        for column, cell in zip(shown, cells, strict=True):
            if cell is None or cell.time_us is None:
                row.append(NONE)
                continue
            words = durations(cell.time_us)
            if parse(case).bytes >= SMALL:
                words += f", {maybe(cell.gbps)}"
            best = f"**{words}**" if cell.time_us.median == min(times) else words
            row.append(best + _letter(column, transport, cell.way))
        rows.append(row)
    return rows


def _cpu_rows(record: Record, transport: str, shown: Sequence[Column]) -> list[list[str]]:
    rows = []
    for t, case, op in record.rows():
        if t != transport:
            continue
        cells = [record.best(t, case, op, c.name) for c in shown]
        others = [c.others for c in cells if c and c.others is not None]
        row = [case, op.upper(), *(_cpu(c) for c in cells)]
        rows.append([*row, f"{100 * max(others):.0f}%" if others else NONE])
    return rows


def _cpu(cell: Cell | None) -> str:
    if cell is None or cell.cpu_s_per_gb is None:
        return NONE
    size_of = parse(cell.case).bytes
    if size_of >= SMALL:
        return number(cell.cpu_s_per_gb)
    return duration(cell.cpu_s_per_gb * size_of / 1e3)


def _details(record: Record, shown: Sequence[Column]) -> list[str]:
    cases = [case for _, case, _ in record.rows()]
    if not cases:
        return []
    detail = next((case for case in DETAIL if case in cases), cases[-1])
    rows = []
    for transport, case, op in record.rows():
        if case != detail or op != record.rows()[0][2]:
            continue
        for column in shown:
            cell: Cell | None = record.best(transport, case, op, column.name)
            if cell is None or cell.time_us is None:
                continue
            rest = record.at_rest.get(f"{transport}/{column.name}/{cell.way}")
            row = [column.title, transport]
            row += [
                NONE if v is None else duration(v)
                for v in (cell.submit_us, cell.prepare_us, cell.register_us, cell.first_us)
            ]
            row += [NONE if cell.rss_bytes is None else size(cell.rss_bytes)]
            rows.append([*row, NONE if rest is None else f"{100 * rest:.1f}%"])
    head = [
        "",
        "over",
        "the starting call",
        "prepare the list",
        "register",
        "first transfer",
        "memory",
        "at rest",
    ]
    return [
        f"What else a list costs ({detail}, {record.rows()[0][2].upper()}): medians; `register` of kvxfer "
        "allocates the memory too; `memory` is resident above buffers and Python with numpy, of all "
        "processes; `at rest`: processors used when nothing is asked of it",
        "",
        *_grid(head, rows),
    ]


def behind(record: Record) -> list[str]:
    """The rows in which the fastest of kvxfer's columns is slower than a peer."""
    lines = []
    for transport, case, op in record.rows():
        cells = {c.name: record.best(transport, case, op, c.name) for c in COLUMNS}
        times = {name: c.time_us.median for name, c in cells.items() if c and c.time_us}
        ours = min((t for name, t in times.items() if name in OURS), default=None)
        theirs = min(((t, name) for name, t in times.items() if name not in OURS), default=None)
        if ours and theirs and ours > theirs[0]:
            times_longer = f"{ours / theirs[0]:.2f} times"
            peer = f"{theirs[1]} {duration(theirs[0])}"
            lines.append(f"{transport} {case} {op}: {duration(ours)}, {peer} ({times_longer})")
    return lines
