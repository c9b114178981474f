"""The daemon as it describes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import _wire as wire


@dataclass(frozen=True)
class Status:
    """The daemon as it describes itself.

    Attributes:
        node: its name.
        epoch: its incarnation, 32 hex digits.
        version: of its software.
        peer_addr: where peers reach it.
        http_addr: of its HTTP server, or "".
        providers: what can move bytes, best first.
        absent: what the node would have besides and cannot use on its host, each with why.
        draining: it is shutting down and grants nothing new.
        registry_connected: whether the registry answers.
        nodes: the nodes that it knows.
        clients, leases, transfers: how many it has now.
    """

    node: str
    epoch: str
    version: str
    peer_addr: str
    http_addr: str
    providers: tuple[str, ...]
    draining: bool
    registry_connected: bool
    nodes: tuple[str, ...]
    clients: int
    leases: int
    transfers: int
    absent: Mapping[str, str] = field(default_factory=dict, hash=False)


def read_status(frame: wire.Frame) -> Status:
    """The answer to STATUS."""
    b = frame.body()
    return Status(
        node=wire.get(b, "node", ""),
        epoch=wire.get(b, "epoch", ""),
        version=wire.get(b, "version", ""),
        peer_addr=wire.get(b, "peer_addr", ""),
        http_addr=wire.get(b, "http_addr", ""),
        providers=wire.get_strings(b, "providers"),
        draining=wire.get(b, "draining", False),
        registry_connected=wire.get(b, "registry_connected", False),
        nodes=wire.get_strings(b, "nodes"),
        clients=wire.get(b, "clients", 0),
        leases=wire.get(b, "leases", 0),
        transfers=wire.get(b, "transfers", 0),
        absent={wire.get(a, "provider", ""): wire.get(a, "why", "") for a in wire.get_objects(b, "absent")},
    )
