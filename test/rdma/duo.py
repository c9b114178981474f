"""A daemon on each of two machines, with clients that write both ways: the stage of the tests of faults.

A *step* is a write of which half the layers are handed over, and the rest when the test says so: what
happens in between is in the middle of the transfer, however fast the machines are.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import network
from latewriter import MS, PATIENCE, STDERR, LateWriterError
from serving import Daemon
from vm import VM

LAYERS, PIECE, UNITS = 4, 4096, 48
TAKEN = 16
"""Units of a transfer: 512 KiB in 128 ranges."""
CONTROL = 2
"""The link of control messages, which no fault touches."""
SETTINGS = ("--providers", "verbs", "--rdma-timeout", "14")
"""A rail that does not answer is given up after half a second, not after two."""
HTTP = "127.0.0.1:7430"


@dataclass
class End:
    """How a transfer ended, from both sides: "good" or an error's code."""

    target: str
    source: str
    error: str
    provider: str
    reason: str


class Way:
    """Writes of one direction: a client that has the bytes, and one that owns the memory."""

    def __init__(self, source: Daemon, owner: Daemon) -> None:
        shape = ("--layers", str(LAYERS), "--piece", str(PIECE), "--units")
        self.source = source.client("source", *shape, str(2 * UNITS), name=f"from-{source.name}")
        self.owner = owner.client("owner", *shape, str(UNITS), name=f"to-{owner.name}")
        self._ids = 0

    def ready(self) -> Way:
        """Wait until both have their memory."""
        self.source.ready()
        self.owner.ready()
        return self

    def _next(self) -> dict[str, Any]:
        self._ids += 1
        first = self._ids % (UNITS // TAKEN) * TAKEN
        return {
            "id": self._ids, "kind": "push", "way": "revoke", "mark": 128 + self._ids % 100, "ttl": MS,
            "units": list(range(first, first + TAKEN)), "from": list(range(TAKEN - 1, -1, -1)),
        }  # fmt: skip

    def begin(self, only: str = "") -> int:
        """The first half of a step; returns its number."""
        one = self._next()
        one["ticket"] = self.owner.ask("open", [one])[0]["ticket"]
        self.source.ask("begin", [{**one, "only": only}])
        return int(one["id"])

    def begun(self, number: int) -> None:
        """Wait until bytes of a step have arrived."""
        assert self.owner.ask("begun", {"ids": [number], "ms": MS}), "nothing has arrived"

    def go_on(self, number: int) -> None:
        """The second half."""
        self.source.ask("go on", {"ids": [number]})

    def end(self, number: int) -> End:
        """Wait until it is over and its memory its owners' again. What came is what the source had."""
        sent = self.source.ask("results", {"ids": [number], "ms": MS})[0]
        if sent["end"] != "good":  # nobody comes any more
            self.owner.ask("take", [{"id": number}])
        had = self.owner.ask("wait", {"ids": [number], "ms": MS})[0]
        assert not had.get("wrong"), f"{had['wrong']} bytes are not what the source had"
        for client in (self.source, self.owner):
            client.ask("idle", {"ms": MS})
        assert not self.owner.late, f"bytes changed in memory that was taken back: {self.owner.late}"
        error = " | ".join(e["error"] for e in (sent, had) if e.get("error"))
        return End(had["end"], sent["end"], error, sent.get("by", ""), sent.get("reason", ""))

    def push(self, only: str = "") -> End:
        """A whole write."""
        number = self.begin(only)
        self.go_on(number)
        return self.end(number)

    def pull(self) -> str:
        """A whole read, of blocks that the source offers; returns how it ended and over what."""
        one = self._next()
        one |= {"kind": "pull", "way": "cancel", "from": [UNITS + u for u in one["from"]]}
        one["ticket"] = self.source.ask("offer", [one])[0]["ticket"]
        self.owner.ask("read", [one])
        end = self.owner.ask("wait", {"ids": [one["id"]], "ms": MS})[0]
        self.source.ask("revoke", {"ids": [one["id"]]})
        self.source.ask("wait", {"ids": [one["id"]], "ms": MS})
        assert not end.get("wrong"), f"{end['wrong']} bytes are not what the source had"
        return f"{end['end']} over {end.get('by')}"

    def close(self) -> None:
        """End the clients."""
        for client in (self.source, self.owner):
            client.close()


class Duo:
    """Daemons ``a`` and ``b``, each on the machine of that name, and writes there (from a to b) and back."""

    def __init__(self, machines: Sequence[VM], logs: Path) -> None:
        self.machines = dict(zip("ab", machines, strict=True))
        self._logs = logs
        self.daemons: dict[str, Daemon] = {}
        self._ways: list[Way] = []

    def start(
        self, a: Sequence[str] = SETTINGS, b: Sequence[str] = SETTINGS, confined: int = 0, tag: str = ""
    ) -> Duo:
        """End what runs and start both, with settings and clients. ``confined``: b may lock so many bytes."""
        self.close()
        for name, settings in (("a", a), ("b", b)):
            machine = self.machines[name]
            machine.run(f"rm -rf /tmp/{name}{tag}.state")
            address = network.ends(name)[CONTROL].ipv4
            daemon = Daemon(machine, f"{name}{tag}", address, self._logs, "--http", HTTP, *settings)
            if confined and name == "b":
                daemon.argv = ["confine", str(confined), *daemon.argv]
            self.daemons[name] = daemon
        for daemon in self.daemons.values():
            daemon.start()
        return self

    def open(self) -> Duo:
        """Attach the clients."""
        a, b = self.daemons["a"], self.daemons["b"]
        self._ways = [Way(a, b), Way(b, a)]
        for way in self._ways:
            way.ready()
        return self

    @property
    def there(self) -> Way:
        """Writes from a to b."""
        return self._ways[0]

    @property
    def back(self) -> Way:
        """Writes from b to a."""
        return self._ways[1]

    def well(self) -> None:
        """Both daemons work: a transfer each way goes over verbs."""
        for way in self._ways:
            end = way.push()
            assert (end.source, end.target, end.provider) == ("good", "good", "verbs"), end

    def metric(self, name: str, series: str) -> float:
        """A value of a daemon's metrics; 0 where it is not there."""
        out = self.machines[name].run(f"busybox wget -q -O - http://{HTTP}/metrics").out
        found = re.search(rf"^{re.escape(series)} (\S+)$", out, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def active(self, name: str, device: str) -> float:
        """Whether a daemon says that a port is up."""
        return self.metric(name, f'kvxfer_rdma_port_active{{device="{device}",port="1"}}')

    def packets(self, name: str, device: str) -> int:
        """How many RoCE packets a device has sent."""
        path = f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts"
        return int(self.machines[name].get(path))

    def used_again(self, device: str) -> None:
        """Transfers go over a device of a's again, sooner or later."""
        end = time.monotonic() + PATIENCE
        while True:
            before = self.packets("a", device)
            self.well()
            if self.packets("a", device) >= before + TAKEN:
                return
            assert time.monotonic() < end, f"{device} is not used again"

    def quarantined(self) -> float:
        """Bytes of both daemons that are not used again."""
        return sum(self.metric(name, "kvxfer_quarantined_memory_bytes") for name in self.daemons)

    def exceeded(self, name: str) -> int:
        """How many of a machine's queue pairs have given up to send."""
        out = (
            self.machines[name].run("cat /sys/class/infiniband/*/ports/1/hw_counters/retry_exceeded_err").out
        )
        return sum(map(int, out.split()))

    def refused(self) -> str:
        """Why b does not take an owner's memory."""
        owner = self.daemons["b"].client("owner", "--units", str(UNITS), "--piece", str(PIECE))
        try:
            owner.ready()
        except LateWriterError:
            return self.machines["b"].run(f"tail -1 {STDERR}").out
        raise AssertionError("the memory was taken")

    def close(self) -> None:
        """End the clients and the daemons."""
        for way in self._ways:
            way.close()
        for daemon in self.daemons.values():
            if daemon.process is not None:
                daemon.kill()
        self._ways, self.daemons = [], {}
