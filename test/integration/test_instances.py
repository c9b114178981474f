"""One lease over an engine's ranks on several nodes: bound once, committed on all or on none."""

from __future__ import annotations

import random
import secrets
import struct
from collections.abc import Iterator

import pytest
from kvxfer import _wire as wire

from conftest import Start
from daemon import Daemon, NatsServer
from ranks import LAYERS, Process, Rank, RequestError, code, known, packed


class Engines:
    """Decode ranks on d0 and d1, their scheduler on d0 and without memory, and two prefill engines on p."""

    def __init__(self, d0: Daemon, d1: Daemon, p: Daemon) -> None:
        self.decode = [Rank(d0, "decode", 0, 2), Rank(d1, "decode", 1, 2)]
        self.prefill = [Rank(p, "prefill", r, 2) for r in range(2)]
        self.hedge = [Rank(p, "hedge", r, 2) for r in range(2)]
        self.scheduler = Process(d0)

    def lease(self, *blocks: int) -> tuple[dict[str, object], str, list[dict[str, object]]]:
        """A lease, its ticket and what each rank was told."""
        info = known("the ranks", lambda: self.scheduler.lease("decode", *blocks))
        assert info["ranks"] == 2
        return info, info["ticket"], [d.granted(info["lease_id"]) for d in self.decode]

    def close(self) -> None:
        """Leave."""
        for rank in (*self.decode, *self.prefill, *self.hedge):
            rank.close()
        self.scheduler._sock.close()


@pytest.fixture
def daemons(nats: NatsServer, daemon: Start) -> list[Daemon]:
    return [daemon(name, "--nats", nats.url) for name in ("d0", "d1", "p")]


@pytest.fixture
def engines(daemons: list[Daemon]) -> Iterator[Engines]:
    e = Engines(*daemons)
    yield e
    e.close()


def test_both_ranks_are_written_under_one_ticket(engines: Engines, rng: random.Random) -> None:
    for r in engines.prefill:
        r.memory[:] = rng.randbytes(len(r.memory))
    blocks, to = rng.sample(range(16), 5), rng.sample(range(16), 5)
    info, ticket, parts = engines.lease(*to)
    transfer = secrets.token_hex(16)
    pushes = [r.push(ticket, transfer, *blocks) for r in engines.prefill]
    for r, push in zip(engines.prefill, pushes, strict=True):
        r.finish(push, b"from %d" % r.rank)
        assert code(r.transfer_end(push)) == ""
    end = engines.scheduler.lease_end(info["lease"])  # type: ignore[arg-type]
    assert end.body()["bytes"] == 2 * 5 * len(engines.decode[0].block(0))
    assert end.body()["transfer_id"] == transfer
    assert code(end.body()) == ""
    assert end.array == b"from 0"
    seen: set[int] = set()
    while seen != set(range(LAYERS)):
        array = engines.scheduler.event(wire.EVENT_LAYERS).array
        assert struct.unpack_from("<Q", array) == (info["lease"],)
        seen |= set(struct.unpack(f"<{len(array) // 4 - 2}I", array[8:]))
    for d, p, part in zip(engines.decode, engines.prefill, parts, strict=True):
        assert d.lease_end(part["lease"]).body()["generation"] == part["generation"]  # type: ignore[arg-type]
        assert [d.block(b) for b in to] == [p.block(b) for b in blocks]
        assert d.states()["committed"] == 5


def test_a_hedged_source_is_refused_on_every_rank(engines: Engines) -> None:
    _, ticket, _ = engines.lease(1, 2)
    first, second = secrets.token_hex(16), secrets.token_hex(16)
    push = engines.prefill[1].push(ticket, first, 3, 4)
    engines.prefill[1].finish(push)
    assert code(engines.prefill[1].transfer_end(push)) == ""
    for r in engines.hedge:  # rank 0 is not bound yet
        end = r.transfer_end(r.push(ticket, second, 3, 4))
        assert code(end) == "TicketBound"
        assert not end["error"].get("may_have_written", False)
    push = engines.prefill[0].push(ticket, first, 3, 4)
    engines.prefill[0].finish(push)
    assert code(engines.prefill[0].transfer_end(push)) == ""
    for d in engines.decode:
        d.until_states(committed=2, leased=0)


def test_all_parts_or_none(engines: Engines) -> None:
    engines.lease(7)
    busy = engines.decode[1].call(
        wire.LEASE, {"cache": engines.decode[1].cache_id, "mode": "write", "ttl_ms": 600_000}, packed(3)
    )
    assert busy.body()["lease"]
    with pytest.raises(RequestError) as refused:
        engines.scheduler.lease("decode", 2, 3)
    assert refused.value.body["name"] == "BlocksBusy"
    assert refused.value.body["peer"] == "d1"
    assert [d.states()["leased"] for d in engines.decode] == [1, 2]
    with pytest.raises(RequestError) as refused:
        engines.scheduler.call(
            wire.LEASE,
            {"instance": "decode", "instance_key": "A" * 24, "mode": "write", "ttl_ms": 1000},
            packed(1),
        )
    assert refused.value.body["name"] == "PermissionDenied"


def test_a_ranks_daemon_is_killed_in_the_middle(engines: Engines, daemons: list[Daemon]) -> None:
    info, ticket, _ = engines.lease(1, 2)
    transfer = secrets.token_hex(16)
    pushes = [r.push(ticket, transfer, 3, 4) for r in engines.prefill]
    engines.prefill[0].finish(pushes[0])
    assert code(engines.prefill[0].transfer_end(pushes[0])) == ""
    engines.prefill[1].layer(pushes[1], 0)
    engines.decode[1].event(wire.EVENT_LAYERS)
    daemons[1].kill()
    end = engines.scheduler.lease_end(info["lease"]).body()  # type: ignore[arg-type]
    assert code(end) == "PeerLost"
    assert end["error"]["peer"] == "d1"
    assert code(engines.prefill[1].transfer_end(pushes[1])) == "PeerLost"
    engines.decode[0].until_states(committed=0, leased=0, revoking=0)


def test_the_askers_daemon_is_killed_in_the_middle(engines: Engines, daemons: list[Daemon]) -> None:
    _, ticket, parts = engines.lease(1, 2)
    transfer = secrets.token_hex(16)
    pushes = [r.push(ticket, transfer, 3, 4) for r in engines.prefill]
    engines.prefill[1].finish(pushes[1])
    assert code(engines.prefill[1].transfer_end(pushes[1])) == ""
    assert code(engines.decode[1].lease_end(parts[1]["lease"]).body()) == ""  # type: ignore[arg-type]
    daemons[0].kill()
    assert code(engines.prefill[0].transfer_end(pushes[0])) == "PeerLost"
    engines.decode[1].until_states(committed=0, leased=0, revoking=0)


def test_a_retry_needs_the_fence_and_a_higher_attempt(engines: Engines) -> None:
    info, ticket, _ = engines.lease(1)
    transfer = secrets.token_hex(16)
    first = engines.prefill[0].push(ticket, transfer, 3)
    engines.prefill[0].layer(first, 0)
    engines.decode[0].event(wire.EVENT_LAYERS)
    _, again, _ = engines.lease(2)
    source = engines.prefill[0]
    assert code(source.transfer_end(source.push(again, transfer, 3))) == "TicketBound"
    assert code(source.transfer_end(source.push(again, transfer, 3, attempt=2))) == "BlocksBusy"
    engines.scheduler.call(wire.REVOKE, {"lease": info["lease"]})
    assert code(engines.scheduler.lease_end(info["lease"]).body()) == "LeaseRevoked"  # type: ignore[arg-type]
    assert code(source.transfer_end(first)) == "LeaseRevoked"
    for r in engines.prefill:
        push = r.push(again, transfer, 3, attempt=2)
        r.finish(push)
        assert code(r.transfer_end(push)) == ""
    for d in engines.decode:
        d.until_states(committed=1, leased=0)
