"""Puts a run's tables and plot into docs/performance.md, between two markers."""

from __future__ import annotations

from pathlib import Path

from plot import svg
from record import Record
from table import markdown

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
PICTURE = "peers.svg"


def replaced(page: str, fragment: str) -> str:
    """The page with the fragment between its markers.

    Raises:
        ValueError: the page has not each marker once, in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"the page needs {BEGIN} and {END} once each, in this order")
    return f"{before}{BEGIN}\n\n{fragment.strip()}\n\n{END}{after}"


def write(record: Record, page: Path) -> None:
    """Changes the page, and the picture beside it."""
    fragment = f"`{record.command}`\n\n![Time of a transfer]({PICTURE})\n\n{markdown(record)}"
    page.write_text(replaced(page.read_text(), fragment))
    (page.parent / PICTURE).write_text(svg(record))
