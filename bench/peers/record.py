"""What a run leaves: cells, marks, reasons; as JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from cases import parse
from spread import Spread

FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """One way of one column for a case and an operation.

    Attributes:
        time_us: of a transfer, from the call until its completion was known in the calling process.
        submit_us: median time until the starting call returned.
        cpu_s_per_gb: processor time of all the engine's processes for each 10^9 bytes.
        rss_bytes: resident memory of all its processes above the memory that is moved and what Python with
            numpy takes.
        register_us: to register the memory; kvxfer's allocates it too.
        prepare_us: what is done once for many transfers of the list.
        first_us: the first transfer.
        others: share of all processors, 0..1, that other programs used meanwhile.
        found: a bit that was changed on purpose was found by the comparison of bytes.
        error: why there is nothing; "" where there is.
    """

    transport: str
    case: str
    op: str
    column: str
    way: str
    time_us: Spread | None = None
    submit_us: float | None = None
    cpu_s_per_gb: float | None = None
    rss_bytes: int | None = None
    register_us: float | None = None
    prepare_us: float | None = None
    first_us: float | None = None
    others: float | None = None
    found: bool = False
    error: str = ""

    @property
    def gbps(self) -> float | None:
        """The list's bytes by the median time, 10^9 bytes a second."""
        return None if self.time_us is None else parse(self.case).bytes / self.time_us.median / 1e3


@dataclass
class Record:
    """A whole run.

    Attributes:
        command: what made it.
        machine: processors, memory, kernel.
        versions: of what was compared.
        cells: every way of every column, in the order of the tables.
        at_rest: processors used by all processes of a way when nothing is asked of it, by
            "transport/column/way".
        marks: what the machine does without any of them, by name.
        ucx: plain UCX's puts and gets of single blocks, one object for each way and size.
        notes: what could not be measured, and why.
    """

    command: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    cells: list[Cell] = field(default_factory=list)
    at_rest: dict[str, float] = field(default_factory=dict)
    marks: dict[str, Spread] = field(default_factory=dict)
    ucx: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0
    date: str = ""

    def best(self, transport: str, case: str, op: str, column: str) -> Cell | None:
        """The column's fastest way, or one that failed, or None where it was not tried."""
        found = [
            c for c in self.cells if (c.transport, c.case, c.op, c.column) == (transport, case, op, column)
        ]
        return min(found, key=lambda c: c.time_us.median if c.time_us else float("inf"), default=None)

    def rows(self) -> list[tuple[str, str, str]]:
        """Transport, case and operation of each row, in the order in which they were measured."""
        return list(dict.fromkeys((c.transport, c.case, c.op) for c in self.cells))


def dump(record: Record) -> str:
    """As JSON."""
    cells = [asdict(c) | {"gbps": c.gbps} for c in record.cells]
    return json.dumps({"format": FORMAT} | asdict(record) | {"cells": cells}, indent=1) + "\n"


def load(text: str) -> Record:
    """What dump wrote.

    Raises:
        ValueError: it is of another format.
    """
    data: dict[str, Any] = json.loads(text)
    if data.pop("format", None) != FORMAT:
        raise ValueError(f"not a record of format {FORMAT}")
    for cell in data["cells"]:
        del cell["gbps"]
        cell["time_us"] = cell["time_us"] and Spread(**cell["time_us"])
    data["cells"] = [Cell(**cell) for cell in data["cells"]]
    data["marks"] = {name: Spread(**mark) for name, mark in data["marks"].items()}
    return Record(**data)
