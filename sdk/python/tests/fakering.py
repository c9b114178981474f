"""The daemon's side of a ring, for tests: it moves nothing and ends posts as a test says, by default well."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import threading
import time
from collections.abc import Callable

#: What becomes of a post {prepared, cookie, timeout_ns}: (code, flags, bytes), or None: no end.
Decide = Callable[[int, int, int], "tuple[int, int, int] | None"]


def well(_prepared: int, _cookie: int, _timeout_ns: int) -> tuple[int, int, int]:
    return 0, 0, 4096


class FakeRing:
    """It keeps to the rules of package ring: it sleeps by its word, rings only a client that sleeps."""

    def __init__(self, memory: int, doorbell: int, bell: int, entries: int) -> None:
        seals = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
        assert seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        size = 4096 + entries * (64 + 32)
        assert os.fstat(memory).st_size == -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(memory, os.fstat(memory).st_size)
        os.close(memory)
        self.doorbell, self.bell, self.entries = doorbell, bell, entries
        assert self.map[:12] == b"KVXRING1" + struct.pack("<I", entries)
        self.on_post: Decide = well
        self.pace = 0.0  # seconds before each end
        self.running = threading.Event()
        self.running.set()
        self.sleep = True
        self.posts: list[tuple[int, int, int]] = []
        self.stopped = False
        self.completed = 0
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def word(self, offset: int) -> int:
        value: int = struct.unpack_from("=Q", self.map, offset)[0]
        return value

    def put(self, offset: int, value: int) -> None:
        struct.pack_into("=Q", self.map, offset, value)

    def end(self, cookie: int, code: int = 0, flags: int = 0, size: int = 4096, bell: bool = True) -> None:
        with self.lock:
            at = 4096 + self.entries * 64 + self.completed % self.entries * 32
            struct.pack_into("<QIIQQ", self.map, at, cookie, code, flags, size, 1500)
            self.completed += 1
            self.put(192, self.completed)
            if self.map[384]:
                self.map[384] = 0
                if bell:
                    self.ring()

    def ring(self) -> None:
        try:
            os.write(self.bell, b"\1")
        except OSError:  # full, or the client is gone
            pass

    def close(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        self.running.set()
        os.eventfd_write(self.doorbell, 1)
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.map[448] = 1
        self.ring()
        os.close(self.doorbell)
        os.close(self.bell)

    def _serve(self) -> None:
        taken = 0
        while not self.stopped:
            self.running.wait()
            submitted = self.word(64)
            if submitted == taken:
                if self.sleep:
                    self._wait(taken)
                continue
            assert submitted - self.completed <= self.entries, "more are out than there are places"
            while taken != submitted:
                at = 4096 + taken % self.entries * 64
                post = struct.unpack_from("<QQQ", self.map, at)
                assert self.map[at + 24 : at + 64] == bytes(40)
                self.posts.append(post)
                taken += 1
                self.put(128, taken)
                if self.pace:
                    time.sleep(self.pace)
                said = self.on_post(*post)
                if said is not None:
                    self.end(post[1], *said)

    def _wait(self, taken: int) -> None:
        self.map[320] = 1
        if self.word(64) == taken:
            limit = 0.001
            while self.word(64) == taken and not self.stopped:
                if select.select([self.doorbell], [], [], limit)[0]:
                    os.eventfd_read(self.doorbell)
                    break
                limit = 10.0
        self.map[320] = 0
