"""A client in a process of its own, which a test can kill, stop or let exit without closing anything.

The parent's :class:`Worker` sends a JSON object a line and reads one back; :class:`Service` is the other end.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvxfer
import numpy as np

from contents import MODEL, Bytes, allocate, pieces, random_bytes


class CallError(Exception):
    """What a call in the worker raised.

    Attributes:
        name: the type's name.
        released: as KvxferError's.
    """

    def __init__(self, name: str, detail: str, released: bool | None) -> None:
        super().__init__(f"{name}: {detail}")
        self.name, self.released = name, released


class Worker:
    """The parent's end: ``worker.call("write", ...)`` calls :class:`Service`'s method of that name."""

    def __init__(self, socket: str, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(Path(__file__).resolve()), socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, method: str, **arguments: Any) -> None:
        """Start a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        """The oldest call's result."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker has ended with {self.process.poll()}"
        answer = json.loads(line)
        if "error" in answer:
            raise CallError(**answer["error"])
        return answer["result"]

    def call(self, method: str, **arguments: Any) -> Any:
        """Call and wait for the result."""
        self.send(method, **arguments)
        return self.receive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does. A second call does nothing."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Service:
    """The worker's end."""

    def __init__(self, socket: str) -> None:
        self.client = kvxfer.connect(socket)
        self.caches: dict[str, kvxfer.Cache] = {}
        self.arrays: dict[str, Bytes] = {}
        self.leases: list[kvxfer.Lease] = []
        self.pushes: list[kvxfer.Push] = []

    def allocate(
        self,
        name: str,
        layout: dict[str, Any],
        num_blocks: int,
        seed: int | None = None,
        instance: str = "",
        instance_key: str = "",
    ) -> None:
        """Allocate a cache of this worker, with instance as that engine's rank."""
        lay = kvxfer.Layout(**layout)
        self.caches[name] = allocate(
            self.client, name, lay, num_blocks, seed, instance=instance, instance_key=instance_key.encode()
        )

    def adopt(self, name: str, layout: dict[str, Any], num_blocks: int, seed: int, way: str) -> str:
        """Register an array of this worker as a cache; its guarantee."""
        lay = kvxfer.Layout(**layout)
        array = np.frombuffer(mmap.mmap(-1, lay.block_bytes * num_blocks, mmap.MAP_PRIVATE), np.uint8)
        array[:] = random_bytes(lay, num_blocks, seed).reshape(-1)
        self.arrays[name] = array
        self.caches[name] = self.client.register_cache(
            name, model=MODEL, layout=lay, tensors=array, num_blocks=num_blocks, adopt=way
        )
        return self.caches[name].guarantee

    def unmap(self, name: str) -> None:
        """Take the pages of a registered array away from under it."""
        libc = ctypes.CDLL(None, use_errno=True)
        array = self.arrays[name]
        assert libc.munmap(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)) == 0

    def lease(self, cache: str, blocks: list[int], ttl: float = 30) -> tuple[int, str]:
        """Lease blocks; the lease's number here, and its ticket."""
        self.leases.append(self.caches[cache].lease(blocks, ttl=ttl))
        return len(self.leases) - 1, self.leases[-1].ticket

    def write(self, cache: str, blocks: list[int], ticket: str, layerwise: bool, timeout: float = 30) -> int:
        """Start a push; its number here."""
        self.pushes.append(self.caches[cache].write(blocks, to=ticket, layerwise=layerwise, timeout=timeout))
        return len(self.pushes) - 1

    def layers(self, push: int, layers: list[int]) -> None:
        """Hand layers of a push over."""
        for layer in layers:
            self.pushes[push].layer(layer)

    def finish(self, push: int) -> None:
        """Finish a push."""
        self.pushes[push].finish()

    def wait_push(self, push: int) -> int:
        """Wait for a push's end; the bytes moved."""
        return self.pushes[push].wait().bytes

    def wait_lease(self, lease: int) -> int:
        """Wait for a lease's end; the bytes placed."""
        return self.leases[lease].wait().bytes

    def visible(self, lease: int) -> list[int]:
        """The layers that are there."""
        return self.leases[lease].visible_layers()

    def granted_layers(self, cache: str, lease_id: str) -> list[int]:
        """The layers that are there of a lease that another process took."""
        return self.caches[cache].granted(lease_id).wait(60).visible_layers()

    def digest(self, cache: str, blocks: list[int]) -> str:
        """Stands for the bytes of blocks."""
        return digest(self.caches[cache], blocks)

    def released(self, lease: int) -> bool:
        """Whether a lease's memory is reusable, after a wait of at most a minute."""
        self.leases[lease].wait_released(60)
        return self.leases[lease].released

    def reconnect(self) -> dict[str, list[int]]:
        """Attach again; the blocks that are served."""
        return {name: ids.tolist() for name, ids in self.client.reconnect(60).items()}

    def surroundings(self) -> dict[str, Any]:
        """What this process is and sees."""
        status = dict(x.split(":\t", 1) for x in Path("/proc/self/status").read_text().splitlines())
        return {
            "pid": os.getpid(),
            "capabilities": int(status["CapEff"], 16),
            "watched": self.client.process_watched,
            "daemon_exited": self.client.daemon_exited(),
        }

    def fork(self) -> int:
        """Leave the connection to a child that does nothing; its process id."""
        # A descriptor that the SDK does not know of: its own ones it closes in a forked child.
        os.dup(self.client._session.conn._sock.fileno())
        pid = os.fork()
        while pid == 0:
            signal.pause()
        return pid

    def exit(self) -> None:
        """End the process without closing anything."""
        os._exit(0)


def digest(cache: kvxfer.Cache, blocks: Sequence[int]) -> str:
    """Stands for the bytes of blocks, in every process."""
    return hashlib.sha256(pieces(cache)[:, :, list(blocks)].tobytes()).hexdigest()


def main() -> None:
    """Serve until the parent closes the pipe."""
    service = Service(sys.argv[1])
    for line in sys.stdin:
        call = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": getattr(service, call["method"])(**call["arguments"])}
        except kvxfer.KvxferError as e:
            answer = {"error": {"name": type(e).__name__, "detail": str(e), "released": e.released}}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
