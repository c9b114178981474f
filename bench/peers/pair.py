"""An engine's two worker processes, and the daemons that belong to them, as the orchestrator sees them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cases import LOCAL, READ, REMOTE, SIDES, Case
from processes import cpu_of, rss

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0
"""Seconds that bound every wait for a process: nothing that works takes anywhere near it."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class FailedError(Exception):
    """An engine could not do what was asked of it; the text says what."""


def child(cpu: int | None) -> Callable[[], None]:
    """What a process does before it runs its program: it dies with this one, also when it is stopped, and
    keeps to one processor where one is given."""

    def set_up() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})

    return set_up


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's, without what would change the engines' settings, and with more."""
    ours = ("KVXFER_", "OTEL_", "UCX_", "NIXL_", "MC_", "GLOG_")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | dict(more)


def tail(path: Path) -> str:
    """The last line that a process wrote to stderr, for an error's text."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][-300:]}" if lines else ""


class Process:
    """A worker."""

    def __init__(
        self, engine: str, way: str, side: str, env: Mapping[str, str], log: Path, cpu: int | None
    ) -> None:
        self.name, self.log = f"{engine.rpartition('.')[2]} ({side})", log
        self._left = b""
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "worker.py"), engine, way, side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment(env),
                preexec_fn=child(cpu),
                bufsize=0,
            )
        self.pid = self.process.pid

    def tell(self, do: str, **fields: Any) -> None:
        """Asks without waiting."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended; hear says how
            self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """The answer to what was told."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            raise FailedError(f"{self.name} ended with status {self.process.returncode}")
        while b"\n" not in self._left:
            if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
                raise FailedError(f"{self.name} does not answer within {PATIENCE:.0f} s")
            more = os.read(self.process.stdout.fileno(), 1 << 20)
            if not more:
                status = self.process.wait()
                raise FailedError(f"{self.name} ended with status {status}{tail(self.log)}")
            self._left += more
        line, self._left = self._left.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FailedError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Asks and waits."""
        self.tell(do, **fields)
        return self.hear()

    def end(self) -> None:
        """Kills it: everything it had to say was said."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Pair:
    """Both workers of one way of one engine, with a case open."""

    def __init__(
        self,
        engine: str,
        way: str,
        case: Case,
        env: Mapping[str, Mapping[str, str]],
        directory: Path,
        *,
        daemons: tuple[int, ...] = (),
        grants: bool = False,
        rests: bool = False,
        cpus: Mapping[str, int] | None = None,
    ) -> None:
        """
        Args:
            engine: its module, as engines.nixl.
            env: each side's environment beyond this process's.
            directory: for the workers' logs.
            daemons: pids that work for the pair, and for others in turn.
            grants: each transfer needs a ticket from the remote side.
            rests: it does nothing when nothing is asked of it, so it need not be stopped meanwhile.
            cpus: the processor of each side; None leaves that to the kernel.
        """
        self.engine, self.way, self.case = engine, way, case
        self.daemons, self.grants, self.rests = daemons, grants, rests
        self.sides: dict[str, Process] = {}
        try:
            for side in SIDES:
                log = directory / f"{engine}-{way}-{side}.log".replace(" ", "-").replace(",", "")
                cpu = None if cpus is None else cpus[side]
                self.sides[side] = Process(engine, way, side, env[side], log, cpu)
            for side in SIDES:
                self.sides[side].hear()  # it has started
            opened = self._both("open", case=case.name)
            words = {side: opened[side]["words"] for side in SIDES}
            self.sides[LOCAL].tell("meet", words=words[REMOTE])
            self.sides[REMOTE].tell("meet", words=words[LOCAL])
            for side in SIDES:
                self.sides[side].hear()
            self.register_ns: int = words[LOCAL]["register_ns"]
            self.start_ns: int = opened[LOCAL]["start_ns"]
        except BaseException:
            self.end()
            raise

    def _both(self, do: str, **fields: Any) -> dict[str, dict[str, Any]]:
        for side in SIDES:
            self.sides[side].tell(do, **fields)
        return {side: self.sides[side].hear() for side in SIDES}

    def ends(self, op: str) -> tuple[Process, Process]:
        """Where bytes come from, and where they go to."""
        local, remote = self.sides[LOCAL], self.sides[REMOTE]
        return (remote, local) if op == READ else (local, remote)

    def prepare(self, op: str) -> int:
        """Returns the nanoseconds that the local side took for it."""
        words = self.sides[REMOTE].ask("prepare", op=op, words={})["words"]
        prepared: int = self.sides[LOCAL].ask("prepare", op=op, words=words)["words"]["prepare_ns"]
        return prepared

    def run(self, op: str, count: int) -> None:
        """Makes transfers."""
        local, remote = self.sides[LOCAL], self.sides[REMOTE]
        if not self.grants:
            local.ask("run", op=op, count=count)
            return
        for _ in range(count):
            local.ask("run", op=op, count=1, ticket=remote.ask("grant", op=op)["ticket"])
            remote.ask("settle", op=op)

    def samples(self) -> tuple[list[int], list[int]]:
        """Nanoseconds of the transfers since the last call, and of their starting calls."""
        answer = self.sides[LOCAL].ask("samples")
        return answer["took"], answer["held"]

    @property
    def pids(self) -> list[int]:
        return [*(p.pid for p in self.sides.values()), *self.daemons]

    def cpu_ns(self) -> int:
        return cpu_of(self.pids)

    def footprint(self) -> int:
        """Resident bytes of all its processes above the memory that is moved and what Python itself takes."""
        workers: int = sum(self.sides[side].ask("footprint")["bytes"] for side in SIDES)
        return workers + sum(rss(pid, shared=False) for pid in self.daemons)

    def stop(self) -> None:
        """Nothing of it runs until go."""
        if not self.rests:
            for p in self.sides.values():
                os.kill(p.pid, signal.SIGSTOP)

    def go(self) -> None:
        """The reverse of stop."""
        if not self.rests:
            for p in self.sides.values():
                os.kill(p.pid, signal.SIGCONT)

    def close(self) -> None:
        """Lets both sides give everything back, who uses the other's memory first, and ends them."""
        try:
            for side in SIDES:
                self.sides[side].ask("close")
        finally:
            self.end()

    def end(self) -> None:
        """Ends them as they are."""
        for p in self.sides.values():
            p.end()
