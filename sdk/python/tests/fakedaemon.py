"""A daemon for tests: a real Unix socket, real descriptor passing, and frames packed here, not by the SDK.

It answers as a daemon would and moves no bytes; tests replace the answers by kind and send events themselves.
``python fakedaemon.py PATH [EPOCH]`` runs it as a process of its own, which tests stop and kill.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fakering import FakeRing

HEADER = struct.Struct("<4sBBHQIIH6s")
HELLO, HELLO_OK, ERROR, OK, PING = 1, 2, 3, 4, 5
REGISTER_REGION, DEREGISTER_REGION, REGISTER_CACHE, DROP_CACHE, BLOCKS, EVICT = range(0x10, 0x16)
PUBLISH, LOOKUP, OPEN = range(0x16, 0x19)
LEASE, REVOKE, RENEW, ADVERTISE = range(0x20, 0x24)
PUSH, PUSH_LAYER, PUSH_FINISH, PUSH_CANCEL, PULL, SCATTER, PREPARE, POST = range(0x30, 0x38)
EVENT_LAYERS, EVENT_LEASE, EVENT_TRANSFER, EVENT_RELEASED, EVENT_HOLDER, EVENT_GRANTED = range(0x40, 0x46)
EVENT_PREPARED, EVENT_POSTED = 0x46, 0x47
SPANS, STATUS, RING = 0x50, 0x51, 0x58
NO_REPLY = {PUSH_LAYER, PUSH_FINISH, PUSH_CANCEL, POST, SPANS}
TICKET = "kvx1.secretsecretsecret"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
LEASE_ID = "1e" * 16
REVOKED = {"code": 23, "name": "LeaseRevoked"}


@dataclass
class Got:
    """A frame that a client sent."""

    kind: int
    flags: int
    request: int
    body: dict[str, Any]
    array: bytes
    fds: list[int]
    raw: bytes


def pack(kind: int, request: int, body: Any = None, data: bytes = b"", flags: int = 0, fds: int = 0) -> bytes:
    raw = b"" if body is None else json.dumps(body).encode()
    return HEADER.pack(b"KVXF", 1, kind, flags, request, len(raw), len(data), fds, b"\0" * 6) + raw + data


def u32s(*v: int) -> bytes:
    return struct.pack(f"<{len(v)}I", *v)


class Peer:
    """One client's connection."""

    def __init__(self, daemon: FakeDaemon, sock: socket.socket) -> None:
        self.daemon = daemon
        self.sock = sock
        self.closed = threading.Event()

    def send(self, kind: int, request: int = 0, body: Any = None, data: bytes = b"") -> None:
        self.sock.sendall(pack(kind, request, body, data))

    def ok(self, got: Got, body: Any = None, data: bytes = b"") -> None:
        self.send(OK, got.request, body, data)

    def error(self, got: Got, code: int, name: str, **more: Any) -> None:
        self.send(ERROR, got.request, {"code": code, "name": name, **more})

    def close(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    # Events.

    def layers(self, lease: int, *layers: int) -> None:
        self.send(EVENT_LAYERS, 0, None, struct.pack("<Q", lease) + u32s(*layers))

    def lease_ended(self, lease: int, note: bytes = b"", **more: Any) -> None:
        body = {
            "lease": lease,
            "transfer_id": "ab" * 16,
            "peer": "node-b",
            "provider": "tcp",
            "bytes": 4096,
            "generation": 7,
            **more,
        }
        self.send(EVENT_LEASE, 0, body, note)

    def transfer_ended(self, transfer: int, released: bool = True, **more: Any) -> None:
        body = {
            "transfer": transfer,
            "transfer_id": "cd" * 16,
            "peer": "node-b",
            "provider": "tcp",
            "provider_reason": "the only one",
            "blocks": 3,
            "bytes": 4096,
            "released": released,
            "first_ns": 10,
            "last_ns": 30,
            "busy_ns": 15,
            **more,
        }
        self.send(EVENT_TRANSFER, 0, body)

    def holder_ended(self, lease: int, note: bytes = b"", **more: Any) -> None:
        body = {
            "lease": lease,
            "transfer_id": "cd" * 16,
            "peer": "node-b",
            "provider": "tcp",
            "bytes": 64,
            **more,
        }
        self.send(EVENT_HOLDER, 0, body, note)

    def prepared(self, transfer: int, **more: Any) -> None:
        body = {"transfer": transfer, "provider": "shm", "provider_reason": "one host", "operations": 1}
        self.send(EVENT_PREPARED, 0, {**body, "bytes": 4096, **more})

    def posted(self, cookie: int, code: int = 0, wrote: bool = False, size: int = 4096) -> None:
        self.send(EVENT_POSTED, 0, None, struct.pack("<QIIQQ", cookie, code, wrote, size, 1000))

    def granted(self, cache: int, *blocks: int, **more: Any) -> int:
        """Another process leased blocks; the lease's number."""
        lease = self.daemon.number()
        body = {
            "lease": lease,
            "cache": cache,
            "lease_id": LEASE_ID,
            "mode": "write",
            "generation": 13,
            **more,
        }
        self.send(EVENT_GRANTED, 0, body, u32s(*blocks))
        return lease

    def released(self, transfer: int) -> None:
        self.send(EVENT_RELEASED, 0, {"transfer": transfer})


Handler = Callable[[Peer, Got], None]


@dataclass
class FakeDaemon:
    path: str
    epoch: str = "e0" * 16
    node: str = "node-a"
    on: dict[int, Handler] = field(default_factory=dict)
    served: Callable[[dict[int, int]], list[int]] = list
    got: list[Got] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    holders: list[dict[str, Any]] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    features: tuple[str, ...] = ("prepared",)
    rings: list[FakeRing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.running = threading.Event()  # cleared: it reads nothing any more, like a stopped process
        self.running.set()
        self.next_id = 100
        self.prepared: set[int] = set()
        self.regions: dict[int, tuple[int, int, int]] = {}  # number -> fd, size, inode
        self.stopped = False
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def stop(self) -> None:
        self.stopped = True
        self.running.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        for p in self.peers:
            p.close()
        for t in self.threads:
            t.join(10)
            assert not t.is_alive()
        self.listener.close()
        os.unlink(self.path)
        for fd, _, _ in self.regions.values():
            os.close(fd)
        for ring in self.rings:
            ring.close()

    @property
    def peer(self) -> Peer:
        return self.peers[-1]

    def wait_for(self, kind: int, count: int = 1, seconds: float = 20.0) -> list[Got]:
        """The frames of a kind, once there are that many."""
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                found = [g for g in self.got if g.kind == kind]
                if len(found) >= count:
                    return found
                left = end - time.monotonic()
                assert left > 0, f"{len(found)} frames of kind {kind:#x}, want {count}"
                self.changed.wait(left)

    def count(self, kind: int) -> int:
        with self.changed:
            return sum(g.kind == kind for g in self.got)

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    def region_map(self, region: int) -> mmap.mmap:
        fd, size, _ = self.regions[region]
        return mmap.mmap(fd, size)

    # Threads.

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            peer = Peer(self, sock)
            self.peers.append(peer)
            t = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self.threads.append(t)
            t.start()

    def _serve(self, peer: Peer) -> None:
        buf = b""
        fds: list[int] = []
        try:
            while True:
                self.running.wait()
                data, ancillary, _, _ = peer.sock.recvmsg(1 << 16, socket.CMSG_SPACE(16 * 4))
                for _level, _kind, packed in ancillary:
                    a = array.array("i")
                    a.frombytes(packed)
                    fds += a
                if not data:
                    return
                buf += data
                while len(buf) >= HEADER.size:
                    magic, version, kind, flags, request, n_json, n_array, n_fds, zero = HEADER.unpack_from(
                        buf
                    )
                    assert (magic, version, zero) == (b"KVXF", 1, b"\0" * 6)
                    end = HEADER.size + n_json + n_array
                    if len(buf) < end:
                        break
                    raw, buf = buf[:end], buf[end:]
                    body = json.loads(raw[HEADER.size : HEADER.size + n_json]) if n_json else {}
                    mine, fds = fds[:n_fds], fds[n_fds:]
                    assert len(mine) == n_fds, "the descriptors came with the frame"
                    got = Got(kind, flags, request, body, raw[HEADER.size + n_json :], mine, raw)
                    assert (flags & 1 == 1) == (kind in NO_REPLY)
                    self.running.wait()
                    if self.stopped:
                        return
                    with self.changed:
                        self.got.append(got)
                        self.changed.notify_all()
                    self.on.get(kind, FakeDaemon.answer)(peer, got)
        except OSError:
            pass
        finally:
            for fd in fds:
                os.close(fd)
            peer.sock.close()
            peer.closed.set()

    @staticmethod
    def answer(peer: Peer, got: Got) -> None:
        """The usual answer."""
        d = peer.daemon
        b = got.body
        if got.kind == HELLO:
            assert b["min_version"] == b["max_version"] == 1
            peer.send(
                HELLO_OK,
                got.request,
                {
                    "min_version": 1,
                    "max_version": 1,
                    "version": 1,
                    "tenant": b["tenant"] or "default",
                    "software": "kvxfer 0.1.0",
                    "node": d.node,
                    "epoch": d.epoch,
                    "boot_id": "boot-1",
                    "process_watched": True,
                    "optional": [f for f in d.features if f in b["optional"]],
                    "unknown_field": [1, {"a": None}],
                },
            )
        elif got.kind == REGISTER_REGION:
            (fd,) = got.fds
            number = d.number()
            d.regions[number] = (fd, b["size"], os.fstat(fd).st_ino)
            peer.ok(got, {"region": number, "memory_kind": "host"})
        elif got.kind == DEREGISTER_REGION:
            if b["region"] not in d.regions:
                peer.error(got, 4, "NotFound")
                return
            fd, _, _ = d.regions.pop(b["region"])
            os.close(fd)
            peer.ok(got)
        elif got.kind == REGISTER_CACHE:
            assert b["region"] in d.regions
            la = b["layout"]
            size = {"float32": 4, "float16": 2, "bfloat16": 2}.get(la["dtype"], 1)
            planes = 1 if la["order"] == "MLA" else 2
            block = la["layers"] * planes * la["kv_heads"] * la["head_dim"] * la["block_tokens"] * size
            vouched = {x[0]: x[2] for x in struct.iter_unpack("<IIQ", got.array)}
            peer.ok(got, {"cache": d.number(), "block_bytes": block}, u32s(*d.served(vouched)))
        elif got.kind in (LEASE, ADVERTISE):
            answer = {"lease": d.number(), "ticket": TICKET, "generation": 7, "lease_id": LEASE_ID}
            if b["mode"] == "read" or got.kind == ADVERTISE or "instance" in b:
                answer["generation"] = 0
            if "instance" in b:
                answer["ranks"] = 2
            peer.ok(got, answer)
        elif got.kind == PUBLISH:
            n = len(got.array) // (4 + b["key_bytes"])
            assert len(got.array) == n * (4 + b["key_bytes"]) and n > 0
            peer.ok(got, {"generation": 11})
        elif got.kind == LOOKUP:
            assert len(got.array) % b["key_bytes"] == 0 and b["timeout_ms"] > 0
            peer.ok(got, {"holders": d.holders, "unasked": d.unasked})
        elif got.kind == OPEN:
            peer.ok(got, {"ticket": TICKET})
        elif got.kind in (PUSH, PULL, SCATTER):
            peer.ok(
                got,
                {
                    "transfer": d.number(),
                    "transfer_id": "cd" * 16,
                    "trace_id": TRACE_ID,
                    "parent_id": PARENT_ID,
                    "sampled": True,
                },
            )
        elif got.kind == PREPARE:
            number = d.number()
            d.prepared.add(number)
            peer.ok(got, {"transfer": number, "transfer_id": "cd" * 16, "trace_id": TRACE_ID})
            peer.prepared(number)
        elif got.kind == POST:
            for _, cookie, _ in struct.iter_unpack("<QQQ", got.array):
                peer.posted(cookie)
        elif got.kind == PUSH_FINISH and got.body["transfer"] in d.prepared:
            peer.transfer_ended(got.body["transfer"])
        elif got.kind == PUSH_CANCEL and got.body["transfer"] in d.prepared:
            peer.transfer_ended(got.body["transfer"], error={"code": 29, "name": "Cancelled"})
        elif got.kind == RING:
            memory, doorbell, bell = got.fds
            d.rings.append(FakeRing(memory, doorbell, bell, b["entries"]))
            peer.ok(got)
        elif got.kind == BLOCKS:
            body = {"total": 16, "leased": 1, "committed": 2, "revoking": 0, "held": 0}
            peer.ok(got, body, struct.pack("<IIQIIQIIQ", 3, 1, 9, 4, 2, 7, 5, 2, 8))
        elif got.kind == STATUS:
            peer.ok(
                got,
                {
                    "node": d.node,
                    "epoch": d.epoch,
                    "version": "0.1.0",
                    "providers": ["tcp"],
                    "nodes": None,
                    "registry_connected": True,
                    "clients": 1,
                },
            )
        elif got.kind not in NO_REPLY:
            peer.ok(got)


if __name__ == "__main__":
    me = FakeDaemon(sys.argv[1], epoch=sys.argv[2] if len(sys.argv) > 2 else "e0" * 16)
    print("ready", flush=True)
    sys.stdin.read()
