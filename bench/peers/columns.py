"""Who is compared: the columns of the tables, and the ways in which each may work over a transport.

Where a column has several ways over a transport, every one is measured and a row shows the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cases import HOST, TCP
from engines import kvxfer, mooncake, nixl


@dataclass(frozen=True)
class Column:
    """One of those compared.

    Attributes:
        name: as ``--only`` takes it.
        title: as the tables show it.
        engine: its module in engines/.
        package: whose installation it needs (install.py); "" is this repository.
        ways: by transport; where there is none, why.
    """

    name: str
    title: str
    engine: str
    package: str
    ways: dict[str, tuple[str, ...]]
    absent: dict[str, str] = field(default_factory=dict)


COLUMNS = (
    Column(
        "kvxfer-prepared",
        "kvxfer, prepared",
        "kvxfer",
        "",
        {TCP: (kvxfer.PREPARED,), HOST: (kvxfer.PREPARED,)},
    ),
    Column("kvxfer-raw", "kvxfer, raw lists", "kvxfer", "", {TCP: (kvxfer.RAW,), HOST: (kvxfer.RAW,)}),
    Column(
        "kvxfer-blocks",
        "kvxfer, leased blocks",
        "kvxfer",
        "",
        {TCP: (kvxfer.BLOCKS,), HOST: (kvxfer.BLOCKS,)},
    ),
    Column(
        "nixl",
        "NIXL",
        "nixl",
        "nixl",
        {TCP: ("tcp", "tcp, SGL"), HOST: ("shm by copy", "shm, its choice")},
    ),
    Column(
        "mooncake",
        "Mooncake",
        "mooncake",
        "mooncake",
        {TCP: (mooncake.SYNC, mooncake.ASYNC)},
        {HOST: "it has nothing but TCP between two processes of a host without RDMA or CUDA"},
    ),
)
NAMES = tuple(c.name for c in COLUMNS)
OURS = tuple(c.name for c in COLUMNS if not c.package)


def column(name: str) -> Column:
    """The column of a name that NAMES has."""
    return next(c for c in COLUMNS if c.name == name)


def settings(engine: str, way: str) -> dict[str, str]:
    """The environment that a way means, beyond what the run adds of its own."""
    if engine == "nixl":
        return nixl.COMMON | nixl.ENVIRONMENT[way]
    return dict(mooncake.ENVIRONMENT) if engine == "mooncake" else {}
