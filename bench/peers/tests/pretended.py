"""An engine for tests: the memory of both sides is files in PRETENDED, so that the local side can copy
between them.

Ways: "good"; "wrong", which leaves one block out from the second round on; "refuses", whose first transfer
    fails; "mute", which never answers to open."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cases import LOCAL, REMOTE, SIDES, WRITE, Case
from engines.base import Engine, EngineError, Words


class _Side:
    def __init__(self, side: str, way: str) -> None:
        self.side, self.way, self.moved = side, way, 0
        self.place = Path(os.environ["PRETENDED"])

    def _map(self, side: str, case: Case, mode: Any) -> Any:
        return np.memmap(self.place / f"{self.way}-{side}", np.uint8, mode, shape=(case.memory,))

    def open(self, case: Case) -> Words:
        if self.way == "mute":
            print("not a word", file=sys.stderr)
            sys.exit(3)
        self.case, self.memory = case, self._map(self.side, case, "w+")
        return {"register_ns": 1000, "from": self.side}

    def meet(self, peer: Words) -> None:
        assert peer["from"] in SIDES
        assert peer["from"] != self.side

    def prepare(self, op: str, words: Words) -> Words:
        if self.side == LOCAL:
            assert words["for"] == op
            self.other = self._map(REMOTE, self.case, "r+")
        return {"for": op, "prepare_ns": 5}

    def clear(self) -> None:
        pass

    def grant(self, op: str) -> str:
        self.granted = op
        return f"for {op}"

    def settle(self, op: str) -> None:
        assert self.granted == op

    def move(self, op: str, ticket: str) -> tuple[int, int]:
        assert ticket in ("", f"for {op}")
        if self.way == "refuses":
            raise EngineError("not today")
        begun = time.perf_counter_ns()
        case, self.moved = self.case, self.moved + 1
        shape = case.slots, case.block_bytes
        own, other = self.memory.reshape(shape), self.other.reshape(shape)
        leave = 1 if self.way == "wrong" and self.moved > 3 else 0
        here, there = case.ids(LOCAL)[leave:], case.ids(REMOTE)[leave:]
        if op == WRITE:
            other[there] = own[here]
        else:
            own[here] = other[there]
        return time.perf_counter_ns() - begun, 1

    def close(self) -> None:
        print("goodbye")


def make(side: str, way: str) -> Engine:
    """For the worker."""
    return _Side(side, way)
