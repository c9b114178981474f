"""One side of one engine: does what the lines of stdin ask for, until stdin ends.

``worker.py MODULE WAY SIDE``. A line is a JSON object with the field ``do``; the answer is one too, with
``error`` where it could not be done. See pair.py, which asks."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import contents
from cases import parse
from engines.base import Engine
from processes import rss


class Worker:
    """A side and what was measured of it since the last question."""

    def __init__(self, make: Callable[[], Engine], side: str) -> None:
        self.base = rss(os.getpid())  # Python and numpy, before there is an engine
        begun = time.perf_counter_ns()
        self.engine, self.side = make(), side
        self.start_ns = time.perf_counter_ns() - begun
        self.took: list[int] = []
        self.held: list[int] = []

    def do(self, line: dict[str, Any]) -> dict[str, Any]:
        """Does one thing."""
        answer = getattr(self, "do_" + line.pop("do"))(**line)
        return cast("dict[str, Any]", answer or {})

    def do_open(self, case: str) -> dict[str, Any]:
        self.case = parse(case)
        words = self.engine.open(self.case)
        contents.blank(self.engine.memory, self.case)
        return {"words": words, "start_ns": self.start_ns}

    def do_meet(self, words: dict[str, Any]) -> None:
        self.engine.meet(words)

    def do_prepare(self, op: str, words: dict[str, Any]) -> dict[str, Any]:
        return {"words": self.engine.prepare(op, words)}

    def do_fill(self, seed: int) -> None:
        self.engine.clear()
        contents.fill(self.engine.memory, self.case, self.side, seed)

    def do_check(self, seed: int) -> None:
        contents.check(self.engine.memory, self.case, self.side, seed)

    def do_corrupt(self, seed: int) -> dict[str, Any]:
        return {"at": contents.corrupt(self.engine.memory, self.case, self.side, seed)}

    def do_grant(self, op: str) -> dict[str, Any]:
        return {"ticket": self.engine.grant(op)}

    def do_settle(self, op: str) -> None:
        self.engine.settle(op)

    def do_run(self, op: str, count: int, ticket: str = "") -> None:
        """Makes transfers. How long they took is asked for later: to write that down is none of the engine's
        work."""
        move = self.engine.move
        for _ in range(count):
            took, held = move(op, ticket)
            self.took.append(took)
            self.held.append(held)

    def do_samples(self) -> dict[str, Any]:
        took, held, self.took, self.held = self.took, self.held, [], []
        return {"took": took, "held": held}

    def do_footprint(self) -> dict[str, Any]:
        """Resident bytes above the memory that is moved and what Python held before the engine was loaded."""
        return {"bytes": max(0, rss(os.getpid()) - self.engine.memory.nbytes - self.base)}

    def do_close(self) -> None:
        self.engine.close()


def main() -> None:
    """Serves stdin. What an engine's library prints goes to stderr: stdout is the answers'."""
    engine, way, side = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module = importlib.import_module(engine)
    try:
        worker = Worker(lambda: cast("Engine", module.make(side, way)), side)
    except Exception as e:
        print(json.dumps({"error": f"{type(e).__name__}: {e}"}), file=out, flush=True)
        os._exit(1)
    print(json.dumps({}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = worker.do(json.loads(line))
        except Exception as e:  # whatever an engine raises is its answer
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # an engine whose end crashes or hangs has said everything by now


if __name__ == "__main__":
    main()
