"""Runs kvxfer and its peers side by side: ``make bench-peers`` installs them and starts this. See
README.md."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import marks
import page
import table
from cases import CASES, OPS, QUICK, SIDES, TCP, TRANSPORTS, Case, chosen, parse
from columns import NAMES, Column, column, settings
from daemons import Daemons
from engines import kvxfer
from install import STATUS
from measure import Contender, Rounds
from pair import FailedError, Pair
from plot import svg
from processes import describe
from record import Cell, Record, dump, load
from spread import spread

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BUSY = 0.1
"""The share of the processors from which on what others do is warned of."""
UCX_AT = 3
"""Plain UCX is measured before every so many cases."""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    p.add_argument("--only", default="", help=f"columns, of {', '.join(NAMES)}")
    p.add_argument("--case", default="", help=f"lists, as {CASES[3].name},{CASES[8].name}")
    p.add_argument("--op", default="", help="write or read")
    p.add_argument("--transport", default="", help="tcp or host")
    p.add_argument("--rounds", type=int, default=5, help="of each case and operation, 1..1000; default 5")
    p.add_argument(
        "--seconds", type=float, default=1.0, help="that each way works in each, 0.01..600; default 1"
    )
    p.add_argument(
        "--minutes", type=float, default=14, help="about how long at most; fewer rounds then; default 14"
    )
    p.add_argument("--quick", action="store_true", help="three lists, shorter: about two minutes")
    p.add_argument("--pin", action="store_true", help="one processor for each side's processes")
    p.add_argument("--no-marks", action="store_true", help="without plain UCX, iperf3 and the copy of memory")
    p.add_argument("--out", type=Path, help="directory for peers.json, peers.md, peers.txt and peers.svg")
    p.add_argument("--json", action="store_true", help="prints the JSON instead of the table")
    p.add_argument("--docs", action="store_true", help="writes docs/performance.md and docs/peers.svg too")
    p.add_argument("--load", type=Path, help="measures nothing: shows what a peers.json holds")
    p.add_argument("--binary", type=Path, default=REPOSITORY / "bin" / "kvxfer", help="of the daemon")
    p.add_argument(
        "--peers", type=Path, default=REPOSITORY / "build" / "peers", help="where install.py put them"
    )
    o = p.parse_args(arguments)
    try:
        o.columns = [column(name) for name in chosen(o.only, NAMES, "column")]
        o.ops = chosen(o.op, OPS, "operation")
        o.transports = chosen(o.transport, TRANSPORTS, "transport")
        o.cases = [parse(name) for name in o.case.split(",")] if o.case else list(QUICK if o.quick else CASES)
    except ValueError as e:
        p.error(str(e))
    if o.quick:
        o.rounds, o.seconds, o.minutes = min(o.rounds, 3), min(o.seconds, 0.4), min(o.minutes, 2)
    if not (1 <= o.rounds <= 1000 and 0.01 <= o.seconds <= 600):
        p.error("--rounds: allowed 1..1000, --seconds: allowed 0.01..600")
    if not 0 <= o.minutes <= 10000:
        p.error("--minutes: allowed 0..10000")
    if o.pin and len(os.sched_getaffinity(0)) < 2:
        p.error("--pin needs two processors")
    return o


def command(o: argparse.Namespace) -> str:
    """What to type for the same run."""
    words: list[str] = []
    for name in ("only", "case", "op", "transport"):
        if getattr(o, name):
            words += [f"--{name}", getattr(o, name)]
    words += [flag for flag, on in (("--quick", o.quick), ("--pin", o.pin), ("--no-marks", o.no_marks)) if on]
    if not o.quick:
        words += ["--rounds", str(o.rounds)] if o.rounds != 5 else []
        words += ["--seconds", f"{o.seconds:g}"] if o.seconds != 1 else []
        words += ["--minutes", f"{o.minutes:g}"] if o.minutes != 14 else []
    arguments = shlex.join(words)
    return f'make bench-peers ARGS="{arguments}"' if words else "make bench-peers"


class Run:
    """One invocation."""

    def __init__(self, o: argparse.Namespace, directory: Path) -> None:
        self.o, self.directory = o, directory
        status = o.peers / STATUS
        self.missing: dict[str, str] = json.loads(status.read_text())["missing"] if status.exists() else {}
        self.record = Record(command(o), describe(), versions())
        cpus = sorted(os.sched_getaffinity(0))
        self.cpus: Mapping[str, int] | None = dict(zip(SIDES, cpus, strict=False)) if o.pin else None
        self.measured: dict[str, list[float]] = {}
        self.tools = (
            Path(str(metadata.distribution("libucx-cu12").locate_file("libucx")))
            if self._has("ucx")
            else None
        )

    def _has(self, package: str) -> bool:
        return package not in self.missing

    def all(self) -> None:
        """Measures everything that was asked for."""
        begun = time.monotonic()
        self.end = begun + 60 * self.o.minutes
        self.left = len(self.o.transports) * len(self.o.cases) * len(self.o.ops)
        self.record.date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        for transport in self.o.transports:
            directory = self.directory / transport
            directory.mkdir()
            daemons, why = self._daemons(transport, directory)
            try:
                for number, case in enumerate(self.o.cases):
                    if not self.o.no_marks:
                        self._marks(transport, number)
                    self._case(transport, number, case, daemons, why, directory)
            finally:
                if daemons is not None:
                    daemons.stop()
        self.record.marks = {name: spread(values) for name, values in self.measured.items() if values}
        self.record.seconds = time.monotonic() - begun
        busiest = max((c.others or 0 for c in self.record.cells), default=0)
        if busiest > BUSY:
            self.record.notes.append(
                f"other programs used up to {100 * busiest:.0f}% of the processors meanwhile: "
                "measure again when it is quiet"
            )

    def _daemons(self, transport: str, directory: Path) -> tuple[Daemons | None, str]:
        if not any(c.engine == "kvxfer" for c in self.o.columns):
            return None, ""
        try:
            return Daemons(self.o.binary, directory, transport, self.cpus), ""
        except (FailedError, OSError) as e:
            return None, str(e)

    def _case(
        self, transport: str, number: int, case: Case, daemons: Daemons | None, why: str, directory: Path
    ) -> None:
        contenders = []
        absent: dict[str, str] = {}
        for c in self.o.columns:
            reason = c.absent.get(transport) or self.missing.get(c.package, "")
            reason = reason or (why if c.engine == "kvxfer" else "")
            if reason:
                absent[c.name] = reason
                continue
            for way in c.ways[transport]:
                start = partial(self._pair, c, way, case, daemons, directory)
                contenders.append(Contender(c, way, start))
        rounds = Rounds(transport, case, contenders, self.o.rounds, self.o.seconds)
        try:
            for op in self.o.ops:
                say(f"{transport} {case.name} {op}")
                now = time.monotonic()
                cells = rounds.operation(op, now + max(0.0, self.end - now) / self.left)
                self.left -= 1
                cells = [replace(cell, error=self._plain(cell.error)) for cell in cells]
                cells += [Cell(transport, case.name, op, name, "", error=e) for name, e in absent.items()]
                cells.sort(key=lambda cell: NAMES.index(cell.column))
                self.record.cells += cells
                for cell in cells:
                    say("  " + (f"{cell.column} ({cell.way}): " + brief(cell)))
            if number == 0:
                self.record.at_rest |= {f"{transport}/{k}": v for k, v in rounds.at_rest().items()}
        except BaseException:
            rounds.end()
            raise
        self.record.notes += [self._plain(note) for note in rounds.close()]

    def _pair(self, c: Column, way: str, case: Case, daemons: Daemons | None, directory: Path) -> Pair:
        ours = c.engine == "kvxfer"
        env = {side: settings(c.engine, way) for side in SIDES}
        if ours:
            assert daemons is not None
            sdk = str(REPOSITORY / "sdk" / "python" / "src")
            env = {side: {"PYTHONPATH": sdk, "KVXFER_SOCKET": daemons.sockets[side]} for side in SIDES}
        return Pair(
            f"engines.{c.engine}",
            way,
            case,
            env,
            directory,
            daemons=daemons.pids if ours and daemons is not None else (),
            grants=ours and way == kvxfer.BLOCKS,
            rests=ours,
            cpus=self.cpus,
        )

    def _marks(self, transport: str, number: int) -> None:
        """Each once before every case, so that they meet the same machine as the engines; plain UCX less
        often."""
        if transport == TCP:
            self._mark("iperf3, 1 connection", partial(self._iperf3, 1))
            self._mark("iperf3, 4 connections", partial(self._iperf3, 4))
        self._mark("copy of 64 MiB of memory, one thread", marks.memory_copy)
        if number % UCX_AT or (number and self.o.quick):
            return
        if self.tools is None:
            self._note(f"plain UCX: {self.missing['ucx']}")
            return
        sizes = sorted({case.block_bytes for case in self.o.cases})
        for way in column("nixl").ways[transport]:
            if "SGL" in way:
                continue  # NIXL's own setting
            try:
                rows = marks.ucx(self.tools, way, sizes, self.directory)
            except (FailedError, OSError) as e:
                self._note(f"plain UCX ({way}): {e}")
                continue
            known = {(u["way"], u["bytes"]): u for u in self.record.ucx}
            for row in rows:
                old = known.get((row["way"], row["bytes"]))
                if old is None:
                    self.record.ucx.append(row)
                else:  # the best of all passes: it is the machine's mark
                    old |= {k: min(old[k], row[k]) for k in ("put_us", "get_us")}
                    old["put_gbps"] = max(old["put_gbps"], row["put_gbps"])

    def _iperf3(self, streams: int) -> float:
        if "iperf3" in self.missing:
            raise FailedError(self.missing["iperf3"])
        unpacked = self.o.peers / "iperf3" / "usr"
        libraries = next(iter(sorted((unpacked / "lib").glob("*-linux-gnu"))), None)
        program = unpacked / "bin" / "iperf3" if libraries else Path("iperf3")
        return marks.iperf3(program, libraries, streams)

    def _mark(self, name: str, measure: Callable[[], float]) -> None:
        try:
            self.measured.setdefault(name, []).append(measure())
        except (FailedError, OSError) as e:
            self._note(f"{name}: {e}")

    def _plain(self, words: str) -> str:
        """An engine's words without where this run is: a record is shown to others."""
        for place in (self.directory, self.o.peers.resolve(), REPOSITORY):
            words = words.replace(f"{place}/", "").replace(str(place), ".")
        return words

    def _note(self, note: str) -> None:
        note = self._plain(note)
        if note not in self.record.notes:
            self.record.notes.append(note)


def versions() -> dict[str, str]:
    """Of everything that is there."""
    out = {"kvxfer": (REPOSITORY / "VERSION").read_text().strip()}
    names = {
        "nixl": "NIXL",
        "mooncake-transfer-engine-non-cuda": "Mooncake",
        "libucx-cu12": "UCX",
        "numpy": "numpy",
    }
    for package, title in names.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[title] = metadata.version(package)
    return out | {"Python": sys.version.split()[0]}


def brief(cell: Cell) -> str:
    """A cell for the progress."""
    return table.durations(cell.time_us) if cell.time_us else f"{table.NONE} {cell.error}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measures, or loads, and writes what was asked for."""
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an interrupt does, it ends what was started
    if o.load:
        record = load(o.load.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="kvx-peers-") as directory:
            run = Run(o, Path(directory))
            run.all()
            record = run.record
    if o.out:
        o.out.mkdir(parents=True, exist_ok=True)
        for name, content in (
            ("peers.json", dump(record)),
            ("peers.md", table.markdown(record)),
            ("peers.txt", table.text(record)),
            ("peers.svg", svg(record)),
        ):
            (o.out / name).write_text(content)
    if o.docs:
        page.write(record, REPOSITORY / "docs" / "performance.md")
    print(dump(record) if o.json else table.text(record), end="")
    for line in table.behind(record):
        say(f"slower than a peer: {line}")


if __name__ == "__main__":
    main()
