"""Rounds: every engine in turn, in an order that rotates, each alone on the machine while it works.

An engine whose processes use processors at rest is stopped by SIGSTOP while others work; after it goes on,
some transfers are made that do not count. Every round moves new contents, and all that arrived is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cases import Case
from columns import Column
from pair import FailedError, Pair
from processes import cpu_ns, cpu_of, machine_ns
from record import Cell
from spread import quantile, repeats, spread

FIRST = 3
"""Transfers of the first go, which does not count."""
WARM_S = 0.005
"""How long transfers do not count after an engine goes on again; at least two of them."""
LEAST_ROUNDS = 2
"""What an operation gets, however slow the machine is."""
REST_S = 0.6
"""How long an engine is watched doing nothing."""


@dataclass
class Contender:
    """One way of one column in one case.

    Attributes:
        start: makes its processes, with the case open.
    """

    column: Column
    way: str
    start: Callable[[], Pair]
    pair: Pair | None = None
    error: str = ""
    found: bool = False
    # Of the operation that is measured.
    count: int = 0
    warm: int = 0
    took: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    cpu: int = 0
    wall: int = 0
    other: int = 0
    prepare_ns: int = 0
    first_ns: int = 0

    def reset(self) -> None:
        """Before the next operation."""
        self.error, self.took, self.held = "", [], []
        self.cpu = self.wall = self.other = self.count = self.prepare_ns = self.first_ns = 0


class Rounds:
    """All contenders in one case over one transport."""

    def __init__(
        self, transport: str, case: Case, contenders: Sequence[Contender], rounds: int, seconds: float
    ) -> None:
        """
        Args:
            rounds: of each operation.
            seconds: that each contender works in an operation, about.
        """
        self.transport, self.case, self.contenders = transport, case, contenders
        self.rounds, self.seconds = rounds, seconds
        self.seed = 0

    def operation(self, op: str, until: float = float("inf")) -> list[Cell]:
        """Measures one operation. After ``until`` of time.monotonic() no further round begins."""
        for c in self.contenders:
            c.reset()
            self._try(c, lambda c=c: self._begin(c, op))  # type: ignore[misc]
        for number in range(self.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() > until:
                break
            shift = number % len(self.contenders)
            for c in [*self.contenders[shift:], *self.contenders[:shift]]:
                if not c.error:
                    self._try(c, lambda c=c: self._round(c, op))  # type: ignore[misc]
        return [self._cell(c, op) for c in self.contenders]

    def at_rest(self) -> dict[str, float]:
        """Processors that each contender uses when nothing is asked of it, by column and way."""
        out = {}
        for c in self.contenders:
            if c.pair is None:
                continue
            c.pair.go()
            time.sleep(REST_S / 3)  # what was begun ends
            used, begun = c.pair.cpu_ns(), time.perf_counter_ns()
            time.sleep(REST_S)
            out[f"{c.column.name}/{c.way}"] = (c.pair.cpu_ns() - used) / (time.perf_counter_ns() - begun)
            c.pair.stop()
        return out

    def end(self) -> None:
        """Ends all as they are: the run was interrupted."""
        for c in self.contenders:
            if c.pair is not None:
                c.pair.end()
                c.pair = None

    def close(self) -> list[str]:
        """Ends all. Returns what did not end well."""
        notes = []
        for c in self.contenders:
            if c.pair is not None:
                try:
                    c.pair.go()
                    c.pair.close()
                except (FailedError, OSError) as e:
                    notes.append(f"{c.column.title} ({c.way}), {self.case.name}, at its end: {e}")
                c.pair = None
        return notes

    def _try(self, c: Contender, do: Callable[[], None]) -> None:
        """Lets one contender do something; if it fails, its processes end and the others go on."""
        try:
            if c.pair is not None:
                c.pair.go()
            do()
            assert c.pair is not None
            c.pair.stop()
        except (FailedError, OSError) as e:
            c.error = str(e)
            if c.pair is not None:
                c.pair.end()
                c.pair = None

    def _begin(self, c: Contender, op: str) -> None:
        if c.pair is None:
            c.pair = c.start()
        pair = c.pair
        c.prepare_ns = pair.prepare(op)
        self._verified(pair, op, FIRST)
        took, _ = pair.samples()
        c.first_ns = took[0]
        c.found = self._finds(pair, op)
        part = self.seconds / self.rounds
        # The first ones were slow, and where each needs a ticket, that takes time too.
        tried = FIRST if pair.grants else repeats(min(took) / 1e9, part / 4, most=100)
        begun = time.perf_counter()
        pair.run(op, tried)
        wall = (time.perf_counter() - begun) / tried
        took, _ = pair.samples()
        one = wall if pair.grants else quantile(took, 0.5) / 1e9
        c.count, c.warm = repeats(one, part), repeats(one, WARM_S)

    def _verified(self, pair: Pair, op: str, count: int) -> None:
        """Transfers of new contents, compared."""
        source, target = pair.ends(op)
        self.seed += 1
        source.ask("fill", seed=self.seed)
        pair.run(op, count)
        target.ask("check", seed=self.seed)

    def _finds(self, pair: Pair, op: str) -> bool:
        """Whether one wrong bit is found; it is put right again."""
        _, target = pair.ends(op)
        target.ask("corrupt", seed=self.seed)
        try:
            target.ask("check", seed=self.seed)
            found = False
        except FailedError as e:
            found = "WrongBytesError" in str(e)
        target.ask("corrupt", seed=self.seed)
        target.ask("check", seed=self.seed)
        return found

    def _round(self, c: Contender, op: str) -> None:
        assert c.pair is not None
        pair = c.pair
        source, target = pair.ends(op)
        self.seed += 1
        source.ask("fill", seed=self.seed)
        pair.run(op, c.warm)
        pair.samples()
        used, ours, machine, begun = pair.cpu_ns(), self._ours(), machine_ns(), time.perf_counter_ns()
        pair.run(op, c.count)
        c.wall += time.perf_counter_ns() - begun
        c.cpu += pair.cpu_ns() - used
        c.other += max(0, machine_ns() - machine - (self._ours() - ours))
        took, held = pair.samples()
        c.took += took
        c.held += held
        target.ask("check", seed=self.seed)

    def _ours(self) -> int:
        pids = {pid for c in self.contenders if c.pair is not None for pid in c.pair.pids}
        return cpu_ns(os.getpid()) + cpu_of(pids)

    def _cell(self, c: Contender, op: str) -> Cell:
        names = (self.transport, self.case.name, op, c.column.name, c.way)
        if c.error or c.pair is None:
            return Cell(*names, error=c.error or "it was not started")
        pair = c.pair
        pair.go()
        footprint = pair.footprint()
        pair.stop()
        return Cell(
            *names,
            time_us=spread([t / 1e3 for t in c.took]),
            submit_us=quantile(c.held, 0.5) / 1e3,
            cpu_s_per_gb=c.cpu / (self.case.bytes * len(c.took)),
            rss_bytes=footprint,
            register_us=pair.register_ns / 1e3,
            prepare_us=c.prepare_ns / 1e3,
            first_us=c.first_ns / 1e3,
            others=min(1.0, c.other / c.wall / len(os.sched_getaffinity(0))),
            found=c.found,
        )
