"""Transfers whose memory is taken back in their middle, several at a time, under whatever happens meanwhile.

A *volley* starts some transfers at once, waits until the first bytes have arrived, and then everybody's
memory is taken back: each in a *way* of its own, or all by one *event*. As soon as an owner is told that
its memory is its own again it marks every byte; everything is compared until nothing of the volley is left
anywhere. Each transfer counts as a round.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvxfer
import numpy as np

from contents import Bytes, allocate, choose, pieces
from daemon import PATIENCE, Daemon, until
from delayer import Delayer
from watched import MARKS, Watched
from worker import Worker

SIZE = 4
"""Transfers of a volley."""
TAKEN = 24
"""Blocks of each, or units of a region. Each has 32 KiB for each layer, so that some operations of a transfer
are placed, some are under way, some wait."""
BLOCKS = SIZE * TAKEN + 16
RANGE = 8 << 10
"""Bytes of one range of a scatter list."""

WAYS = {
    "push": ("ttl", "revoke", "revoke", "evict", "renew, revoke", "shorten", "cancel"),
    "raw": ("ttl", "revoke", "revoke", "shorten", "cancel"),
    "pull": ("ttl", "cancel", "cancel", "source revokes", "source revokes", "source's ttl"),
}
"""How the memory is taken back. Of a pull that is the reader's; "source ..." means the source's blocks."""
STOPPED = {
    "push": ("ttl", "revoke", "evict", "renew, revoke"),
    "raw": ("ttl", "revoke"),
    "pull": ("ttl", "cancel"),
}
"""What needs no word of the source's daemon."""
EVENTS = {
    "stop": "the source's daemon stands still and goes on later",
    "stop own": "the daemon that stores stands still, perhaps in mid-copy, and goes on soon",
    "lost": "the link is cut; the next volley makes a new one",
    "kill": "the source's client is killed",
    "silent": "the source's daemon stands still until the peer gives it up",
    "crash": "the source's daemon is killed and started again",
    "crash own": "the own daemon is killed and started again",
    "kill own": "the target's client is killed",
}
"""What ends or disturbs all transfers of a volley at once."""
ENDING = ("lost", "kill", "silent", "crash")
"""What ends a lease only when its transfer has bound it: else its owner waits for another to come."""


@dataclasses.dataclass(eq=False)
class Victim:
    """One transfer whose memory is taken back."""

    kind: str
    way: str
    area: Watched
    units: list[int]
    mine: Any
    """The owner's handle: a Lease, an Advertisement or a Pull."""
    far: Any = None
    """The source's handle, where it has one: a Push, a Scatter or a ReadLease."""
    expected: Bytes | None = None
    """What the units hold after a good end."""
    offered: list[int] = dataclasses.field(default_factory=list)
    """The source's blocks that are marked when the source has them back."""
    marked: bool = False
    """Whether they are."""

    def over(self) -> bool:
        """Whether the owner was told that its memory is its own."""
        return bool(self.mine.poll() and self.mine.released)

    def begun(self) -> bool:
        """Whether a byte has arrived, or none will."""
        return self.area.begun(self.units) or self.over()

    def ended(self) -> bool:
        """Whether the source's side has ended too."""
        return self.far is None or bool(self.far.poll() and self.far.released)


class Stage:
    """A source's and a target's daemon with a hop in between, and their clients' memory."""

    def __init__(
        self,
        nodes: tuple[Daemon, Daemon],
        delayer: Delayer,
        worker: Callable[[Daemon], Worker],
        rng: random.Random,
        provider: str,
        layers: int = 8,
        still: float | None = None,
        count_late: bool = False,
    ) -> None:
        self.prefill, self.decode = nodes
        self.delayer, self.worker, self.rng = delayer, worker, rng
        self.far, self.near = (d.connect() for d in nodes)
        self.lanes = provider == "tcp"  # else no payload goes over the delayer
        # How often the daemon that stores stands still. Over shm it has everything at once.
        self.still = (0.1 if self.lanes else 0.7) if still is None else still
        self.layout = kvxfer.Layout(layers=layers, kv_heads=8, head_dim=64, dtype="uint8", block_tokens=32)
        unit = self.layout.block_bytes
        self.taken_bytes = TAKEN * unit
        self.source = allocate(self.far, "source", self.layout, TAKEN, rng.getrandbits(32))
        self.offered = allocate(self.far, "offered", self.layout, SIZE * TAKEN, rng.getrandbits(32))
        self.contents = pieces(self.offered).copy()
        self.scattered = self.far.allocate_region("scattered", self.taken_bytes)
        self.scattered.array[:] = np.frombuffer(rng.randbytes(self.taken_bytes), np.uint8) & 127
        self.target = allocate(self.near, "target", self.layout, BLOCKS)
        self.region = self.near.allocate_region("raw", SIZE * self.taken_bytes)
        self.blocks = Watched("target", pieces(self.target), count_late)
        self.raw = Watched("raw", self.region.array.reshape(1, 1, SIZE * TAKEN, unit), count_late)
        self.seen: Counter[str] = Counter()
        self.rounds = 0
        self.in_the_middle = 0

    def close(self) -> None:
        """Detach the clients."""
        self.far.close()
        self.near.close()

    def volley(self, event: str = "", ways: dict[str, tuple[str, ...]] | None = None) -> None:
        """One volley. ways: how each kind of transfer may be ended; None: all ways that go with the event."""
        name = f"volley at round {self.rounds} ({event or 'ways'})"
        if event == "kill own":
            self.target_killed(name)
            return
        rng, mark = self.rng, MARKS + self.rounds % 127
        killed = self.worker(self.prefill) if event == "kill" else None
        if killed is not None:
            layout = dataclasses.asdict(self.layout)
            killed.call("allocate", name="killed", layout=layout, num_blocks=TAKEN, seed=1)
        if ways is None and event in ("", "stop", "stop own"):
            ways = STOPPED if event == "stop" else WAYS
        elif ways is None:
            ways = dict.fromkeys(["push"] if killed else WAYS, (event,))
        if holding := self.lanes and event in ("", "stop") and rng.random() < 0.6:
            self.delayer.hold(rng.randrange(SIZE * self.taken_bytes))
        beside, beside_push, at = self.start_beside()
        still = event == "stop own" or (event in ("", "stop") and rng.random() < self.still)
        # By the time at which it stands all transfers should have begun, and none be over.
        short = [rng.uniform(0.003, 0.04) + (0.06 if still else 0) for _ in range(SIZE)]
        victims = [self.start(i, rng.choice(list(ways)), ways, short[i], killed) for i in range(SIZE)]
        if killed is not None:
            for push in range(SIZE):
                killed.send("layers", push=push, layers=list(range(self.layout.layers)))
        self.send(name, victims, still, holding)
        if event in ENDING:
            until(f"{name}: all to begin", lambda: all(v.begun() for v in victims), pause=0)
        self.begin(event, killed)
        self.take_back(event, still, victims, mark)
        self.take_all(name, victims, mark)
        self.watch_for(f"{name}, a while", rng.uniform(0, 0.02), victims, mark)
        if holding:
            self.delayer.release()
        self.undo(event)
        for v in victims:
            if v.offered and not v.far.poll():  # its pull has ended before it came to the source
                v.far.revoke(PATIENCE)

        def ended() -> bool:
            self.mark_offered(victims, mark)
            return (
                all(v.ended() for v in victims) and beside.poll() and beside_push.poll() and beside.released
            )

        self.watch_until(f"{name}, the source's side", ended)
        if event in ("", "stop", "stop own", "kill"):
            beside.wait()
            assert np.array_equal(self.blocks.memory[:, :, at], pieces(self.source)[:, :, : len(at)])
        else:
            assert isinstance(beside.exception(), (kvxfer.PeerLost, kvxfer.DaemonUnavailable, type(None)))
        self.blocks.take(at, mark, "its commit")
        self.watch_until(f"{name}, its end", self.idle)
        self.raw.check(name)
        for v in victims:
            if v.offered:
                pieces(self.offered)[:, :, v.offered] = self.contents[:, :, v.offered]
        self.rounds += len(victims)

    # Beginning.

    def start_beside(self) -> tuple[kvxfer.Lease, kvxfer.Push, list[int]]:
        """A transfer over the same link, whose owner takes nothing back."""
        at = self.rng.sample(self.blocks.free, 3)
        self.blocks.give(at)
        lease = self.target.lease(at, ttl=2 * PATIENCE)
        return lease, self.source.write(range(len(at)), to=lease.ticket, timeout=2 * PATIENCE), at

    def start(
        self, slot: int, kind: str, ways: dict[str, tuple[str, ...]], short: float, killed: Worker | None
    ) -> Victim:
        """A transfer whose memory will be taken back; where that is by time, after so many seconds."""
        rng, way = self.rng, self.rng.choice(ways[kind])
        ttl = short if way == "ttl" else 2 * PATIENCE
        if kind == "raw":
            units = list(range(slot * TAKEN, (slot + 1) * TAKEN))
            self.raw.give(units)
            size, first = self.taken_bytes, slot * self.taken_bytes
            adv = self.region.advertise("write", [(first, size)], uses=1, ttl=ttl)
            n = size // RANGE
            ranges = [(i * RANGE, first + i * RANGE, RANGE) for i in choose(rng, n, n)]
            scatter = self.scattered.writev(ranges, to=adv.ticket, timeout=2 * PATIENCE)
            expected = self.scattered.array.reshape(1, 1, TAKEN, -1)
            return Victim(kind, way, self.raw, units, adv, scatter, expected)
        units = rng.sample(self.blocks.free, TAKEN)
        self.blocks.give(units)
        if kind == "pull":
            offered = [slot * TAKEN + i for i in choose(rng, TAKEN, TAKEN)]
            offer = self.offered.lease(
                offered, mode="read", ttl=short if way == "source's ttl" else 2 * PATIENCE
            )
            pull = self.read(units, offer.ticket, ttl)
            expected = self.contents[:, :, offered]
            return Victim(kind, way, self.blocks, units, pull, offer, expected, offered)
        lease = self.target.lease(units, ttl=ttl)
        v = Victim(kind, way, self.blocks, units, lease)
        if killed is not None:
            killed.call(
                "write", cache="killed", blocks=list(range(TAKEN)), ticket=lease.ticket, layerwise=True
            )
            return v
        blocks = choose(rng, TAKEN, TAKEN)
        v.expected = pieces(self.source)[:, :, blocks]
        v.far = self.source.write(blocks, to=lease.ticket, layerwise=True, timeout=2 * PATIENCE)
        return v

    def read(self, units: list[int], ticket: str, seconds: float) -> kvxfer.Pull:
        """A pull of so many seconds, or more where the own daemon needs more for its answer alone."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.target.read(units, source=ticket, timeout=seconds)
            except kvxfer.DeadlineExceeded:  # it is cancelled when the answer comes
                seconds *= 2
            except kvxfer.BlocksBusy:
                time.sleep(0.001)
            assert time.monotonic() < end

    def send(self, name: str, victims: list[Victim], still: bool, holding: bool) -> None:
        """The bytes of all transfers begin to move at once. When it returns some have arrived, and where
        still is said the daemon that stores stands."""
        rng = self.rng
        layers = choose(rng, self.layout.layers, self.layout.layers)
        # What the source sends to a daemon that stands is all before it when it goes on.
        first = 1 if still and rng.random() < 0.5 else len(layers)
        self.hand_over(victims, layers[:first])
        self.wait_begun(name, victims, layers[0], holding)
        if still:
            self.decode.freeze()
        self.hand_over(victims, layers[first:])
        for v in victims:  # one that is never finished is never committed
            if isinstance(v.far, kvxfer.Push) and (v.way in EVENTS or rng.random() < 0.7):
                v.far.finish()
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.005))

    def hand_over(self, victims: list[Victim], layers: list[int]) -> None:
        """Layers of every push are final."""
        for layer in layers:
            for v in victims:
                if isinstance(v.far, kvxfer.Push):
                    v.far.layer(layer)

    def wait_begun(self, name: str, victims: list[Victim], layer: int, holding: bool) -> None:
        """Wait until some piece of some transfer begins to arrive; where bytes are held it may never."""
        v = self.rng.choice(victims)
        piece = v.area.memory[layer if v.area is self.blocks else 0, 0, self.rng.choice(v.units)]
        end = time.monotonic() + (0.01 if holding else PATIENCE)
        until(
            f"{name}: a piece",
            lambda: piece[0] < MARKS or v.over() or time.monotonic() > end,
            pause=0,
        )

    # Taking back.

    def take_back(self, event: str, still: bool, victims: list[Victim], mark: int) -> None:
        """Each owner wants its memory back, in any order."""
        rng = self.rng
        if event == "" and rng.random() < 0.2:
            self.prefill.freeze()
            time.sleep(rng.uniform(0, 0.01))
            self.prefill.signal(signal.SIGCONT)
        order = rng.sample(victims, len(victims))
        waiting = [v for v in order if v.way == "evict" and still]  # it needs the daemon's answer
        for v in order:
            if v not in waiting:
                self.take_one_back(v)
        if still:
            end = time.monotonic() + rng.uniform(0, 0.06 if event else 0.02)
            if any(v.way == "ttl" for v in victims):
                end += 0.1  # it is over when the daemon goes on
            until("a while", lambda: self.mark_offered(victims, mark) and time.monotonic() > end, pause=0.001)
            self.decode.signal(signal.SIGCONT)
        for v in waiting:
            self.take_one_back(v)

    def begin(self, event: str, killed: Worker | None) -> None:
        """The event happens."""
        if event in ("stop", "silent"):
            self.prefill.freeze() if self.rng.random() < 0.5 else self.prefill.signal(signal.SIGSTOP)
        elif event == "lost":
            self.delayer.cut()
        elif event == "crash":
            self.prefill.kill()
        elif event == "crash own":
            self.decode.kill()
        elif killed is not None:
            killed.kill()

    def undo(self, event: str) -> None:
        """Everything is there again."""
        if event in ("stop", "silent"):
            self.prefill.signal(signal.SIGCONT)
        elif event == "crash":
            self.prefill.start()
            self.far.reconnect(PATIENCE)
        elif event == "crash own":
            self.decode.start()
            self.near.reconnect(PATIENCE)

    def take_one_back(self, v: Victim) -> None:
        """What the way is. Those by time have been begun with their end."""
        if v.way == "evict":
            self.target.evict(v.units, timeout=PATIENCE)
        elif v.way == "revoke":
            v.mine.revoke(PATIENCE)
        elif v.way == "renew, revoke":
            v.mine.renew(self.rng.uniform(1, PATIENCE))
            v.mine.revoke(PATIENCE)
        elif v.way == "shorten":
            v.mine.renew(self.rng.uniform(0.001, 0.01), PATIENCE)
        elif v.way == "cancel":
            (v.mine if v.kind == "pull" else v.far).cancel()
        elif v.way == "source revokes":
            v.far.revoke(PATIENCE)

    def take_all(self, name: str, victims: list[Victim], mark: int) -> None:
        """Each owner marks its memory as soon as it may."""
        left = list(victims)

        def taken() -> bool:
            for v in [v for v in left if v.over()]:
                self.take(v, mark)
                left.remove(v)
            self.mark_offered(victims, mark)
            return not left

        self.watch_until(f"{name}, taking back", taken)

    def take(self, v: Victim, mark: int) -> None:
        """The owner was told: from now on no byte may land."""
        error = v.mine.exception()
        some, whole = v.area.touched(v.units)
        if error is None and v.expected is not None:
            assert np.array_equal(v.area.memory[:, :, v.units], v.expected), f"{v}: not what the source had"
        v.area.take(v.units, mark, f"{v.kind}: {v.way}")
        middle = error is not None and some and not whole
        self.in_the_middle += middle
        end = "good" if error is None else type(error).__name__
        self.seen[f"{v.kind}, {v.way}: {end}{', in the middle' if middle else ''}"] += 1

    def mark_offered(self, victims: list[Victim], mark: int) -> bool:
        """The source marks blocks that nobody may read any more; True. A reader must never count them."""
        for v in victims:
            if v.offered and not v.marked and v.ended():
                pieces(self.offered)[:, :, v.offered] = mark
                v.marked = True
        return True

    def target_killed(self, name: str) -> None:
        """The target's client dies in the middle. Its memory is watched through another mapping, from when
        the daemon has let it go."""
        rng = self.rng
        w = self.worker(self.decode)
        w.call("allocate", name="dying", layout=dataclasses.asdict(self.layout), num_blocks=SIZE * TAKEN)
        memory, unmapped = self.mapping(w)
        area = Watched(
            "dying", memory.reshape(self.layout.layers, self.layout.planes, SIZE * TAKEN, -1), self.counting
        )
        pushes, units = [], choose(rng, SIZE * TAKEN, SIZE * TAKEN)
        area.give(units)
        for i in range(SIZE):
            _, ticket = w.call("lease", cache="dying", blocks=units[i * TAKEN : (i + 1) * TAKEN])
            blocks = choose(rng, TAKEN, TAKEN)
            pushes.append(self.source.write(blocks, to=ticket, timeout=2 * PATIENCE))
        until(f"{name}: a first byte", lambda: area.begun(units) or all(p.poll() for p in pushes), pause=0)
        if holding := self.lanes and rng.random() < 0.5:
            self.delayer.hold(0)
        w.kill()
        until(f"{name}: the memory to be let go", unmapped, pause=0.001)
        some, whole = area.touched(units)
        area.take(units, MARKS + self.rounds % 127, "kill own")
        self.in_the_middle += some and not whole
        self.seen["push, kill own"] += SIZE
        if holding:
            self.delayer.release()

        def ended() -> bool:
            area.check(name)
            return all(p.poll() and p.released for p in pushes)

        self.watch_until(f"{name}, the source's side", ended)
        self.watch_until(f"{name}, its end", self.idle)
        area.check(name)
        if area.late and self.blocks.late is not None:
            self.blocks.late += area.late
        self.rounds += SIZE

    def mapping(self, w: Worker) -> tuple[Bytes, Callable[[], bool]]:
        """A worker's memory, and whether its daemon has let it go."""
        for fd in Path(f"/proc/{w.process.pid}/fd").iterdir():
            if str(fd.readlink()).startswith("/memfd:kvxfer:dying"):
                with fd.open("r+b") as f:
                    size, inode = os.fstat(f.fileno()).st_size, os.fstat(f.fileno()).st_ino
                    memory = np.frombuffer(mmap.mmap(f.fileno(), size), np.uint8)
                return memory, functools.partial(self.unmapped, inode)
        raise AssertionError("the worker has no memory")

    def unmapped(self, inode: int) -> bool:
        """Whether the own daemon has no mapping of a file."""
        return f" {inode} " not in Path(f"/proc/{self.decode.pid}/maps").read_text()

    # Watching.

    @property
    def counting(self) -> bool:
        """Whether late bytes are counted instead of raised."""
        return self.blocks.late is not None

    @property
    def late(self) -> Counter[str]:
        """Late bytes, by what took their place back."""
        return (self.blocks.late or Counter()) + (self.raw.late or Counter())

    def watch_until(self, when: str, done: Callable[[], object]) -> None:
        """Look at every byte until something is so, and once more."""

        def looked() -> bool:
            self.blocks.check(when)
            self.raw.check(when)
            return bool(done())

        until(when, looked, pause=0.002)
        looked()

    def watch_for(self, when: str, seconds: float, victims: list[Victim], mark: int) -> None:
        """Look at every byte for a while."""
        end = time.monotonic() + seconds
        self.watch_until(when, lambda: self.mark_offered(victims, mark) and time.monotonic() > end)

    def idle(self) -> bool:
        """Whether neither daemon knows of a lease or a transfer."""
        return all(s.leases + s.transfers == 0 for s in (c.status() for c in (self.near, self.far)))
