"""A process between nodes that forwards their TCP connections, holds payload back and cuts links.

Lanes, which say who they are by their first bytes, can be held: what a node has sent arrives long after it
was sent, in order, while the control connections go on. So bytes come later than the word that their place
was taken back.

The test's :class:`Delayer` sends a command a line and reads a line back; :class:`Hop` is the other end. It is
a process of its own so that it forwards while the test compares memory.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

LANE = b"KVXL"
CHUNK = 1 << 18
LIMIT = 32 << 20
"""Bytes of one direction that are kept; then its sender has to wait."""


class Delayer:
    """The parent's end. ``ports[i]`` leads to the i-th of the ports that it was made with."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *map(str, ports)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ports = [int(port) for port in self._line().split()]

    def hold(self, after: int) -> None:
        """After so many more bytes of lanes no byte of any lane goes on."""
        self._say(f"hold {after}")

    def release(self) -> None:
        """Everything that was held goes on."""
        self._say("release")

    def cut(self) -> None:
        """Close every connection. New ones may be made."""
        self._say("cut")

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the delayer has ended with {self.process.poll()}"
        return line


class Pair:
    """One connection on both sides of the hop."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.lane: bool | None = None  # not known before the client's first bytes
        self.ends = client, server
        self.waiting: dict[socket.socket, deque[memoryview]] = {client: deque(), server: deque()}
        """What has to be written to each end."""
        self.over = False  # one end has closed: what it sent is still delivered

    def other(self, end: socket.socket) -> socket.socket:
        """The end that gets what this one sends."""
        return self.ends[end is self.ends[0]]


class Hop:
    """The process's end: one thread, one selector."""

    def __init__(self, ports: list[int]) -> None:
        self.selector = selectors.DefaultSelector()
        self.left: int | None = None  # bytes of lanes that still go on; None: all
        self.pairs: set[Pair] = set()
        self.listeners = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
        for listener in self.listeners:
            self.selector.register(listener, selectors.EVENT_READ)
        print(*(listener.getsockname()[1] for listener in self.listeners), flush=True)

    def run(self) -> None:
        """Forward until the parent closes the pipe."""
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, events in self.selector.select():
                if key.data is not None:
                    pair, end = key.data[0], key.fileobj
                    assert isinstance(end, socket.socket)
                    if pair in self.pairs:
                        self.serve(pair, end, events)
                elif isinstance(key.fileobj, socket.socket):
                    self.accept(key.fileobj)
                elif not self.obey(sys.stdin.readline().strip()):
                    return

    def obey(self, word: str) -> bool:
        """Do what the parent says."""
        if not word:
            return False
        if word == "cut":
            for pair in list(self.pairs):
                self.close(pair)
        else:
            self.left = int(word.split()[1]) if word.startswith("hold") else None
            for pair in list(self.pairs):
                self.watch(pair)
        print("done", flush=True)
        return True

    def accept(self, listener: socket.socket) -> None:
        """A node dials another."""
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.listeners[listener]))
        except OSError:  # the node is not there; the dialer sees its connection end
            client.close()
            return
        pair = Pair(client, server)
        self.pairs.add(pair)
        for end in pair.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(end, selectors.EVENT_READ, (pair,))

    def serve(self, pair: Pair, end: socket.socket, events: int) -> None:
        """Read from and write to one end."""
        try:
            if events & selectors.EVENT_READ:
                self.read(pair, end)
            if events & selectors.EVENT_WRITE:
                self.write(pair, end)
        except BlockingIOError:
            pass
        except OSError:
            pair.over = True
            pair.waiting[end].clear()
        self.watch(pair)

    def read(self, pair: Pair, end: socket.socket) -> None:
        """Take what one end has sent, and give it to the other where it may go on."""
        data = end.recv(CHUNK)
        if not data:
            pair.over = True
            return
        if pair.lane is None and end is pair.ends[0]:
            pair.lane = data.startswith(LANE)
        pair.waiting[pair.other(end)].append(memoryview(data))
        with contextlib.suppress(BlockingIOError):
            self.write(pair, pair.other(end))

    def write(self, pair: Pair, end: socket.socket) -> None:
        """Deliver to one end."""
        queue = pair.waiting[end]
        while queue and not self.held(pair):
            n = end.send(queue[0][: self.left] if pair.lane else queue[0])
            if pair.lane and self.left is not None:
                self.left -= n
            queue[0] = queue[0][n:]
            if not queue[0]:
                queue.popleft()

    def held(self, pair: Pair) -> bool:
        """Whether nothing of this connection goes on."""
        return bool(pair.lane) and self.left == 0

    def watch(self, pair: Pair) -> None:
        """Say what to wait for, or end the pair when nothing is left to be delivered."""
        if pair.over and not any(pair.waiting.values()):
            self.close(pair)
            return
        for end in pair.ends:
            full = sum(map(len, pair.waiting[pair.other(end)])) > LIMIT
            events = 0 if pair.over or full else selectors.EVENT_READ
            if pair.waiting[end] and not self.held(pair):
                events |= selectors.EVENT_WRITE
            registered = end in self.selector.get_map()
            if events and registered:
                self.selector.modify(end, events, (pair,))
            elif events:
                self.selector.register(end, events, (pair,))
            elif registered:
                self.selector.unregister(end)

    def close(self, pair: Pair) -> None:
        """Close both ends."""
        self.pairs.discard(pair)
        for end in pair.ends:
            if end in self.selector.get_map():
                self.selector.unregister(end)
            end.close()


if __name__ == "__main__":
    Hop([int(port) for port in sys.argv[1:]]).run()
