"""Ranks of an engine, and a process of it without memory, that speak the local protocol by hand."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable
from typing import Any

from kvxfer import _wire as wire

from daemon import PATIENCE, Daemon, until
from raw import RawClient

PUBLISH, LOOKUP, OPEN, RENEW, PULL, EVENT_GRANTED = 0x16, 0x17, 0x18, 0x22, 0x34, 0x45
LAYERS, BLOCKS = 4, 16
LAYOUT = {
    "layers": LAYERS,
    "kv_heads": 2,
    "head_dim": 16,
    "dtype": "float32",
    "block_tokens": 8,
    "order": "HND",
}
PLANE = 2 * 16 * 8 * 4
"""Bytes of a block's K, or V, in one layer."""
KEY = "dGhlIGVuZ2luZSdzIG93biBzZWNyZXQ="
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RequestError(Exception):
    """An ERROR that answered a request."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body)
        self.body = body


def packed(*blocks: int) -> bytes:
    """Block ids as they travel."""
    return struct.pack(f"<{len(blocks)}I", *blocks)


class Process(RawClient):
    """A client whose answers and events come in any order."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon.socket)
        self.daemon = daemon
        self.events: list[wire.Frame] = []
        self._id = 1000
        self.hello()

    def call(
        self, kind: int, body: dict[str, Any], array: bytes = b"", fds: tuple[int, ...] = ()
    ) -> wire.Frame:
        """Make a request and wait for its answer; RequestError where it is refused."""
        self._id += 1
        self.send(wire.head(kind, self._id, body, len(array), fds=len(fds)) + array, fds)
        while (frame := self.receive()).request != self._id:
            self.events.append(frame)
        if frame.kind == wire.ERROR:
            raise RequestError(frame.body())
        return frame

    def tell(self, kind: int, body: dict[str, Any] | None, array: bytes = b"") -> None:
        """Send a frame that gets no answer."""
        self.send(wire.head(kind, 0, body, len(array), wire.FLAG_NO_REPLY) + array)

    def event(self, kind: int, fits: Callable[[wire.Frame], bool] = lambda _: True) -> wire.Frame:
        """Wait for an event and take it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for i, frame in enumerate(self.events):
                if frame.kind == kind and fits(frame):
                    return self.events.pop(i)
            self.events.append(self.receive())
        raise AssertionError(f"no event {kind:#x}")

    def lease(
        self, instance: str, *blocks: int, mode: str = "write", ttl_ms: int = 600_000
    ) -> dict[str, Any]:
        """A lease on every rank of an instance."""
        body = {"instance": instance, "instance_key": KEY, "mode": mode, "ttl_ms": ttl_ms}
        return self.call(wire.LEASE, body, packed(*blocks)).body()

    def lease_end(self, lease: int) -> wire.Frame:
        """The event that ends a lease."""
        return self.event(wire.EVENT_LEASE, lambda f: f.body()["lease"] == lease)


class Rank(Process):
    """A client with memory that is rank ``rank`` of ``ranks`` of an instance."""

    region_id: str
    fd: int
    memory: mmap.mmap

    def __init__(
        self,
        daemon: Daemon,
        instance: str,
        rank: int = 0,
        ranks: int = 1,
        *,
        former: Rank | None = None,
        vouches: list[tuple[int, int]] | None = None,
    ) -> None:
        """``former`` has lost its daemon: its memory is taken over. ``vouches``: (block, generation)."""
        super().__init__(daemon)
        self.instance, self.rank = instance, rank
        self.name = f"{instance}-{rank}"
        self.layout = {**LAYOUT, "tp_rank": rank, "tp_size": ranks}
        size = LAYERS * 2 * BLOCKS * PLANE
        if former:
            former._sock.close()
            self.region_id, self.fd, self.memory = former.region_id, former.fd, former.memory
        else:
            self.region_id = secrets.token_hex(16)
            self.fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(self.fd, 0, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.memory = mmap.mmap(self.fd, size)
        self.served = self.register_cache(vouches or [])

    def register_cache(self, vouches: list[tuple[int, int]]) -> bytes:
        """Hand the memory over, and return the ids of the blocks that are served again."""
        body = {"name": self.name, "id": self.region_id, "kind": "memfd", "size": len(self.memory)}
        region = self.call(wire.REGISTER_REGION, body, fds=(self.fd,)).body()["region"]
        cache = {
            "name": self.name, "region": region, "model": "m", "layout": self.layout, "num_blocks": BLOCKS,
            "instance": self.instance, "instance_key": KEY,
        }  # fmt: skip
        array = b"".join(struct.pack("<IIQ", b, 0, g) for b, g in vouches)
        answer = self.call(wire.REGISTER_CACHE, cache, array)
        self.cache_id: int = answer.body()["cache"]
        return answer.array

    def close(self) -> None:
        """Leave, and give the memory back."""
        self._sock.close()
        self.memory.close()
        os.close(self.fd)

    def piece(self, layer: int, plane: int, block: int) -> slice:
        """Where a block's K or V of one layer lies."""
        at = ((layer * 2 + plane) * BLOCKS + block) * PLANE
        return slice(at, at + PLANE)

    def block(self, block: int) -> bytes:
        """A block's bytes in all layers."""
        return b"".join(self.memory[self.piece(la, p, block)] for la in range(LAYERS) for p in range(2))

    def granted(self, lease_id: str) -> dict[str, Any]:
        """What the rank is told of an instance's lease."""
        return self.event(EVENT_GRANTED, lambda f: f.body()["lease_id"] == lease_id).body()

    def push(self, ticket: str, transfer: str, *blocks: int, attempt: int = 1) -> int:
        """Begin to push own blocks."""
        body = {
            "cache": self.cache_id, "ticket": ticket, "timeout_ms": 600_000, "layerwise": True,
            "transfer_id": transfer, "attempt": attempt,
        }  # fmt: skip
        number: int = self.call(wire.PUSH, body, packed(*blocks)).body()["transfer"]
        return number

    def layer(self, transfer: int, layer: int) -> None:
        """Hand a layer over."""
        self.tell(wire.PUSH_LAYER, None, wire.pack_layer_part(transfer, layer, 0, 0))

    def finish(self, transfer: int, notification: bytes = b"") -> None:
        """Hand over every layer and finish."""
        for layer in range(LAYERS):
            self.layer(transfer, layer)
        self.tell(wire.PUSH_FINISH, {"transfer": transfer}, notification)

    def transfer_end(self, transfer: int) -> dict[str, Any]:
        """The event that ends a transfer."""
        return self.event(wire.EVENT_TRANSFER, lambda f: f.body()["transfer"] == transfer).body()

    def states(self) -> dict[str, Any]:
        """How many blocks are in each state."""
        return self.call(wire.BLOCKS, {"cache": self.cache_id}).body()

    def until_states(self, **want: int) -> None:
        """Wait until the counts are these."""
        until(f"{self.name} to have {want}", lambda: {k: self.states().get(k, 0) for k in want} == want)

    def publish(self, keys: list[bytes], *blocks: int) -> int:
        """Make blocks known under keys, and return their generation."""
        body = {"cache": self.cache_id, "key_bytes": len(keys[0])}
        generation: int = self.call(PUBLISH, body, packed(*blocks) + b"".join(keys)).body()["generation"]
        return generation

    def lookup(self, keys: list[bytes], **more: object) -> dict[str, Any]:
        """Who has the longest prefix."""
        body = {"model": "m", "layout": self.layout, "key_bytes": len(keys[0]), "timeout_ms": 30_000, **more}
        return self.call(LOOKUP, body, b"".join(keys)).body()

    def open(self, holder: dict[str, Any], keys: list[bytes]) -> str:
        """A ticket to read the blocks of these keys."""
        where = {k: holder[k] for k in ("node", "epoch", "addr", "cache")}
        times = {"ttl_ms": 600_000, "timeout_ms": 30_000}
        body = {**where, **times, "model": "m", "layout": self.layout, "key_bytes": len(keys[0])}
        ticket: str = self.call(OPEN, body, b"".join(keys)).body()["ticket"]
        return ticket

    def pull(self, ticket: str, *blocks: int) -> dict[str, Any]:
        """Read into own blocks, to the end."""
        body = {"cache": self.cache_id, "ticket": ticket, "timeout_ms": 600_000}
        return self.transfer_end(self.call(PULL, body, packed(*blocks)).body()["transfer"])


def code(body: dict[str, Any]) -> str:
    """The name of the error that ended something, "" for none."""
    error = body.get("error")
    return str(error["name"]) if error else ""


def known(what: str, request: Callable[[], Any]) -> Any:
    """The answer to a request that is NotFound until the directory has spread."""
    answers: list[Any] = []

    def answered() -> bool:
        try:
            answers.append(request())
        except RequestError as e:
            if e.body["name"] != "NotFound":
                raise
        return bool(answers)

    until(what, answered)
    return answers[0]
