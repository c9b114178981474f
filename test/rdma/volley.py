"""Transfers between two machines whose memory is taken back in their middle, whatever happens meanwhile.

A *volley* leases the memory of some transfers, starts them at once, and then everybody's memory is taken
back: each in a *way* of its own, while an *event* may disturb all. The owner marks every byte as soon as it
is told that the memory is its own, and looks at all of it until long after. Each transfer counts as a round.
What is written by one volley is not leased by the next, so that packets of the one are looked for while the
next runs.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from latewriter import MS, LateWriter
from serving import Daemon
from weather import Weather

SIZE = 32
"""Transfers of a volley whose memory is taken back."""
BESIDE = 2
"""Transfers that nothing of this may touch."""
TAKEN = 4
"""Units of each: with 2 layers of 2 planes of 2 KiB 16 ranges, 32 KiB."""
UNITS = 2 * (SIZE + BESIDE) * TAKEN + 16
DOOMED = 2 * TAKEN
"""Units of an owner that is killed."""
MARKS = 128

WAYS = {
    "push": ("ttl", "revoke", "revoke", "evict", "renew, revoke", "shorten", "cancel"),
    "raw": ("ttl", "revoke", "revoke", "shorten", "cancel"),
    "pull": ("ttl", "cancel", "cancel", "source revokes"),
}
"""How the memory is taken back. Of a pull that is the reader's; "source ..." means the source's blocks."""
KINDS = ("push", "push", "push", "raw", "pull")
ALONE = {
    "push": ("ttl", "revoke", "evict", "renew, revoke"),
    "raw": ("ttl", "revoke"),
    "pull": ("ttl", "cancel"),
}
"""What needs no word of the source's node."""
EVENTS = {
    "stop": "the source's daemon stands still, and goes on when the owner has its memory",
    "stop own": "the owner's daemon stands still for a while",
    "cut": "the links are down until the owner has its memory",
    "rail": "one of two links is down until the owner has its memory",
    "kill": "the source's client is killed",
    "crash": "the source's daemon is killed and started again",
    "crash own": "the owner's daemon is killed and started again",
    "kill own": "the owner is killed; its memory is watched by another process",
}
"""What disturbs all transfers of a volley at once."""
HARMLESS = ("", "stop", "stop own")
"""Events after which the transfers beside must have ended well."""
OWNER_ACTS = ("revoke", "evict", "renew, revoke", "shorten")

Victim = dict[str, Any]


class LateBytesError(AssertionError):
    """Bytes changed in memory that its owner had taken back."""


class Stage:
    """A source's and an owner's daemon, their clients, and the weather between them.

    ``cut(everything, down)`` takes all links down, or one rail; or up again. ``turns`` is how often the
    weather's delay passes until a transfer's first byte arrives.

    Attributes:
        in_the_middle: rounds in which a part of the bytes had arrived when the owner was told.
        under_way: the same, and those in which the source says that it had written, but nothing had arrived.
        longest: milliseconds that taking memory back took at most, by event.
    """

    def __init__(
        self,
        source: Daemon,
        owner: Daemon,
        weather: Weather,
        rng: random.Random,
        cut: Callable[[bool, bool], None] | None = None,
        turns: int = 3,
    ) -> None:
        self.far, self.near = source, owner
        self.weather, self.rng, self.cut = weather, rng, cut
        self.turns = turns
        self.source = source.client("source", "--units", str(2 * UNITS))
        self.owner = owner.client("owner", "--units", str(UNITS))
        self.source.ready()
        self.owner.ready()
        self.ids = 0
        self.volleys = 0
        self.rounds = 0
        self.in_the_middle = 0
        self.under_way = 0
        self.longest: dict[str, int] = {}
        self.seen: Counter[str] = Counter()
        self.providers: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self._told = 0
        self._last: dict[str, set[int]] = {"blocks": set(), "raw": set()}

    def close(self) -> None:
        """Detach the clients."""
        for client in (self.source, self.owner):
            client.close()

    def volley(self, event: str = "", ways: dict[str, tuple[str, ...]] | None = None) -> None:
        """One volley. ``ways``: how each kind may be taken back; None: all ways that go with the event."""
        if event == "kill own":
            self._killed_owner()
            return
        rng = self.rng
        if ways is None:
            ways = WAYS if event in ("", "rail", "stop own") else ALONE
        killed = (
            self.far.client("source", "--units", str(2 * UNITS), name="killed") if event == "kill" else None
        )
        mark = MARKS + self.volleys % 127
        victims = self._choose(ways, event, mark)
        beside = [v for v in victims if v["way"] == "keep"]
        taken = [v for v in victims if v["way"] != "keep"]
        source = killed.ready() if killed else self.source
        started = self._start(victims, source)
        if rng.random() < 0.7:
            one = rng.choice(taken)
            self.owner.ask("begun", {"ids": [one["id"]], "ms": int(2 * self.weather.longest) + 1000})
        else:
            time.sleep(rng.uniform(0, 1.3 * self.turns * self.weather.delay / 1000))
        self._begin(event, killed)
        acts = self._take(taken, source, event)
        if event == "stop own":
            time.sleep(rng.uniform(0.1, 0.8))
            self.near.signal(signal.SIGCONT)
        if event == "crash own":
            self.near.start()
            self.owner.ask("reconnect", {"ms": MS})
        ends = self.owner.ask("wait", {"ids": [v["id"] for v in taken], "ms": MS})
        self._undo(event, [*started, *acts])
        if acts:  # the first is the owner's
            took = max((a["ms"] for a in acts[0].result()), default=0)
            self.longest[event] = max(self.longest.get(event, 0), took)
        for client in (c for c in (self.source, self.owner) if event in ("crash", "crash own")):
            client.ask("reconnect", {"ms": MS})
        lost, posted = [v["id"] for v in beside], set()
        if killed is None:
            # A pull that ended before it came to the source has left its offer behind.
            self.source.ask("revoke", {"ids": [v["id"] for v in taken if v["kind"] == "pull"]})
            gone = self.source.ask("wait", {"ids": [v["id"] for v in victims], "ms": MS})
            posted = {e["id"] for e in gone if e.get("may")}
            lost = [e["id"] for e in gone if e["id"] in lost and e["end"] != "good"]
        if event not in HARMLESS:  # nobody comes for them any more
            self.owner.ask("take", [{"id": number} for number in lost])
        ends += self.owner.ask("wait", {"ids": [v["id"] for v in beside], "ms": MS})
        for client in (self.owner, self.source):
            client.ask("idle", {"ms": MS})
        self._judge(event, victims, ends, posted)
        self.volleys += 1
        self.rounds += len(taken)

    # Beginning.

    def _choose(self, ways: dict[str, tuple[str, ...]], event: str, mark: int) -> list[Victim]:
        """What each transfer is, and which memory it has."""
        rng = self.rng
        kinds = [k for k in KINDS if k in ways and not (k == "pull" and event in ("kill", "crash"))]
        free = {area: [u for u in range(UNITS) if u not in last] for area, last in self._last.items()}
        for units in free.values():
            rng.shuffle(units)
        self._last = {"blocks": set(), "raw": set()}
        pushed, offered = list(range(UNITS)), list(range(UNITS, 2 * UNITS))
        rng.shuffle(pushed)
        rng.shuffle(offered)
        out = []
        for i in range(SIZE + BESIDE):
            kind = rng.choice(kinds) if i < SIZE else "push"
            way = rng.choice(ways[kind]) if i < SIZE else "keep"
            area = "raw" if kind == "raw" else "blocks"
            units = [free[area].pop() for _ in range(TAKEN)]
            self._last[area].update(units)
            start = [offered if kind == "pull" else pushed][0]
            ttl = MS
            if way == "ttl":
                ttl = self._short()
            elif way == "cancel" or event in ("kill", "crash"):
                # A lease that no transfer has bound when its source ends hears nothing of that.
                ttl = 1000 + 4 * int(self.weather.delay)
            self.ids += 1
            out.append({
                "id": self.ids, "kind": kind, "way": way, "units": units, "ttl": ttl, "mark": mark,
                "from": [start.pop() for _ in range(TAKEN)],
            })  # fmt: skip
        return out

    def _short(self) -> int:
        """Milliseconds of a lease that shall end in the middle of its transfer."""
        delay = self.turns * self.weather.delay
        return int(self.rng.uniform(20 + 0.3 * delay, 200 + 1.3 * delay))

    def _start(self, victims: list[Victim], source: LateWriter) -> list[Future[Any]]:
        """All transfers begin. A request that a daemon's end interrupts may fail, which nobody looks at."""
        granted = [v for v in victims if v["kind"] != "pull"]
        pulls = [v for v in victims if v["kind"] == "pull"]
        # The offer outlasts what reads it, unless its end is what the pull dies of.
        offers = source.send("offer", [{**v, "ttl": MS} for v in pulls])
        tickets = {t["id"]: t["ticket"] for t in self.owner.ask("open", granted)}
        tickets |= {t["id"]: t["ticket"] for t in offers.result()}
        for v in victims:
            v["ticket"] = tickets[v["id"]]
        # One that is never finished is never committed.
        pushes = [{**v, "ttl": MS, "open": v["way"] != "keep" and self.rng.random() < 0.3} for v in granted]
        started = [source.send("push", pushes), self.owner.send("read", pulls)]
        for future in started:
            future.result()
        return started

    # Taking back.

    def _take(self, taken: list[Victim], source: LateWriter, event: str) -> list[Future[Any]]:
        """Each owner wants its memory back, in any order and spread over the delay of the packets."""
        rng = self.rng
        if event in ("kill", "crash", "crash own"):
            return []  # that is what ends them
        spread = self.weather.delay * rng.choice((0, 0.3, 1, 2))
        acts = [
            {"id": v["id"], "after": int(rng.uniform(0, spread))}
            for v in rng.sample(taken, len(taken))
            if v["way"] in OWNER_ACTS or (v["way"] == "cancel" and v["kind"] == "pull")
        ]
        cancelled = [v["id"] for v in taken if v["way"] == "cancel" and v["kind"] != "pull"]
        revoked = [v["id"] for v in taken if v["way"] == "source revokes"]
        return [
            self.owner.send("take", acts),
            source.send("cancel", {"ids": cancelled}),
            source.send("revoke", {"ids": revoked}),
        ]

    def _begin(self, event: str, killed: LateWriter | None) -> None:
        """The event happens."""
        if event == "stop":
            self.far.signal(signal.SIGSTOP)
        elif event == "stop own":
            self.near.signal(signal.SIGSTOP)
        elif event in ("cut", "rail"):
            assert self.cut is not None
            self.cut(event == "cut", True)
        elif event == "crash":
            self.far.kill()
        elif event == "crash own":
            self.near.kill()
        elif killed is not None:
            killed.kill()

    def _undo(self, event: str, asked: list[Future[Any]]) -> None:
        """Everything is there again, and what was asked is answered."""
        if event == "stop":
            self.far.signal(signal.SIGCONT)
        elif event in ("cut", "rail"):
            assert self.cut is not None
            self.cut(event == "cut", False)
        elif event == "crash":
            self.far.start()
        for future in asked:
            future.result()

    def _killed_owner(self) -> None:
        """An owner is killed in the middle of two transfers, and another process watches its memory."""
        holder = LateWriter(
            self.near.machine,
            "memory",
            self.near.logs / f"memory-{self.volleys}.jsonl",
            "memory",
            "--units",
            str(DOOMED),
        )
        owner = self.near.client(
            "owner", "--units", str(DOOMED), "--memory", holder.ready().ask("where"), name="dying"
        )
        units = self.rng.sample(range(DOOMED), DOOMED)
        victims = []
        for i in range(2):
            self.ids += 1
            victims.append({
                "id": self.ids, "kind": "push", "way": "kill own", "ttl": MS,
                "units": units[i * TAKEN : (i + 1) * TAKEN], "from": self.rng.sample(range(UNITS), TAKEN),
            })  # fmt: skip
        tickets = owner.ready().ask("open", victims)
        holder.ask("give", {"units": units})
        self.source.ask("push", [{**v, "ticket": t["ticket"]} for v, t in zip(victims, tickets, strict=True)])
        holder.ask("begun", {"units": units, "ttl": int(self.rng.uniform(0, 2 * self.weather.delay + 100))})
        owner.kill()
        end = holder.ask(
            "let go",
            {"id": 0, "units": units, "pid": self.near.pid, "ms": MS, "mark": MARKS, "way": "push: kill own"},
        )
        self.source.ask("wait", {"ids": [v["id"] for v in victims], "ms": MS})
        holder.ask("look", {"ms": int(self.weather.longest)})
        self._hear(holder.late)
        holder.close()
        middle = end["some"] and not end["whole"]
        self.in_the_middle += middle
        self.seen[f"push, kill own{', in the middle' if middle else ''}"] += 2
        self.volleys += 1
        self.rounds += 2

    # Judging.

    def settle(self) -> None:
        """Look at everything until no packet can be under way any more."""
        self.owner.ask("look", {"ms": int(self.weather.longest) + 200})
        self._hear(self.owner.late)

    def _judge(self, event: str, victims: list[Victim], ends: list[dict[str, Any]], posted: set[int]) -> None:
        named = {v["id"]: v for v in victims}
        for e in ends:
            v = named[e["id"]]
            assert not e.get("wrong"), f"{v}: {e['wrong']} bytes are not what the source had"
            assert e["end"] != "", f"{v}: {e}"
            if v["way"] == "keep":
                assert e["end"] == "good" or event not in HARMLESS, f"a transfer beside: {e}"
            else:
                middle = e["end"] != "good" and e["some"] and not e["whole"]
                self.in_the_middle += middle
                begun = e["some"] or e["id"] in posted
                self.under_way += e["end"] != "good" and not e["whole"] and begun
                self.seen[f"{v['kind']}, {v['way']}: {e['end']}{', in the middle' if middle else ''}"] += 1
            if e.get("by"):
                self.providers[e["by"]] += 1
            if event:
                self.seen[f"({event})"] += 1
        self._hear(self.owner.late)

    def _hear(self, late: list[dict[str, Any]]) -> None:
        """What was found to have changed."""
        for said in late:
            self.late[said["taken"]] += said["bytes"]
        late.clear()
