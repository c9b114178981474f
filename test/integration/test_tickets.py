"""Tickets shown twice at once, to the wrong node, in pieces or by strangers: one transfer has the lease."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import secrets
import threading
from typing import Any

import kvxfer
import numpy as np
import pytest
from kvxfer import _wire as wire

from conftest import Attach, Start
from contents import MODEL, SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, NatsServer
from rawpeer import BIND, RawPeer, grant_of

CHANGED = (kvxfer.TicketInvalid, kvxfer.StaleEpoch, kvxfer.InvalidArgument, kvxfer.PeerUnreachable)
"""What a ticket with a wrong byte may be refused as: it depends on where the byte is."""


def remade(ticket: str, **changes: object) -> str:
    """A ticket whose grant says something else."""
    t = {"grants": [{**grant_of(ticket), **changes}]}
    return "kvx1." + base64.urlsafe_b64encode(json.dumps(t).encode()).decode().rstrip("=")


def test_two_sources_at_once(nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random) -> None:
    """Two nodes show the same ticket at the same time: one of them has the lease, and its bytes are there."""
    names = ("left", "right", "decode")
    left, right, decode = (attach(daemon(name, "--nats", nats.url)) for name in names)
    sources = [allocate(client, f"source-{i}") for i, client in enumerate((left, right))]
    target = allocate(decode, "target")
    for i, source in enumerate(sources):
        pieces(source)[:] = i + 1
    won = [0, 0]
    for _ in range(12):
        to = choose(rng, 32, 3)
        lease = target.lease(to, ttl=PATIENCE)
        together = threading.Barrier(2)
        ended: list[kvxfer.KvxferError | None] = [None, None]

        def show(i: int, lease: kvxfer.Lease = lease, ended: Any = ended, together: Any = together) -> None:
            together.wait()
            push = sources[i].write([0, 1, 2], to=lease.ticket, timeout=PATIENCE)
            push.wait_released(PATIENCE)
            ended[i] = push.exception()

        threads = [threading.Thread(target=show, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        lease.wait()
        (winner,) = [i for i, error in enumerate(ended) if error is None]
        loser = ended[1 - winner]
        assert isinstance(loser, kvxfer.TicketBound), repr(loser)
        assert not loser.may_have_written
        assert (pieces(target)[:, :, to] == winner + 1).all()
        won[winner] += 1
        target.evict(to)
    print(f"won: {won}")


def test_of_another_node(nats: NatsServer, daemon: Start, attach: Attach) -> None:
    """A ticket leads to the node and the incarnation that it names, whatever address it has."""
    prefill, decode, third = (daemon(name, "--nats", nats.url) for name in ("prefill", "decode", "third"))
    source, target = allocate(attach(prefill), "source"), allocate(attach(decode), "target")
    elsewhere = allocate(attach(third), "target")
    before = pieces(target).copy()
    lease = target.lease([0], ttl=PATIENCE)
    wrong = [
        remade(lease.ticket, node="third"),
        remade(lease.ticket, node="third", epoch=third.info["epoch"]),
        remade(lease.ticket, node="nobody"),
        remade(lease.ticket, node="nobody", addr=third.info["peer_addr"]),
        remade(lease.ticket, node="prefill"),
    ]
    for ticket in wrong:
        with pytest.raises((kvxfer.StaleEpoch, kvxfer.TicketInvalid)) as e:
            source.write([0], to=ticket, timeout=PATIENCE).wait()
        assert not e.value.may_have_written
        assert e.value.released is not False
    assert elsewhere.block_states().free == elsewhere.num_blocks
    assert np.array_equal(pieces(target), before)
    misled = remade(lease.ticket, addr=third.info["peer_addr"])  # the registry knows better
    source.write([0], to=misled, timeout=PATIENCE).wait()
    lease.wait()


def meaning(ticket: str) -> object:
    """What decides where a ticket leads. The address does not, as the registry has it too, nor the trace."""
    try:
        body = (
            base64.urlsafe_b64decode(ticket[5:] + "=" * (-len(ticket[5:]) % 4))
            .decode(errors="replace")
            .lower()
        )
        (g,) = json.loads(body)["grants"]
        return (ticket[:5], g["node"], g["epoch"], g["lease"], g["secret"][:-3], g["blocks"])
    except (ValueError, LookupError, TypeError):
        return None


def test_cut_and_changed(pair: tuple[Daemon, Daemon], attach: Attach, rng: random.Random) -> None:
    """Prefixes of a ticket, and tickets with a wrong byte: none moves anything, none uses the lease up."""
    source, target = (allocate(attach(d), f"cache-{i}") for i, d in enumerate(pair))
    pieces(source)[:] = 1
    lease = target.lease([3, 4], ttl=2 * PATIENCE)
    for n in sorted({0, 1, 4, 5, 6, *(rng.randrange(len(lease.ticket)) for _ in range(40))}):
        with pytest.raises(kvxfer.TicketInvalid) as e:
            source.write([0, 1], to=lease.ticket[:n], timeout=PATIENCE).wait()
        assert n < 20 or lease.ticket[:n] not in str(e.value)
    secret = grant_of(lease.ticket)["secret"]
    for _ in range(60):
        ticket = bytearray(lease.ticket, "ascii")
        while ticket == lease.ticket.encode():
            ticket[rng.randrange(len(ticket))] = rng.choice(b"ABCXYZabcxyz0189-_.{\x00")
        if meaning(ticket.decode()) == meaning(lease.ticket):
            continue
        with pytest.raises(CHANGED) as f:
            source.write([0, 1], to=ticket.decode(), timeout=PATIENCE).wait()
        assert not f.value.may_have_written
        assert secret not in str(f.value)
    assert not pieces(target).any()
    source.write([0, 1], to=lease.ticket, timeout=PATIENCE).wait()
    lease.wait()
    for d in pair:
        assert secret not in d.log()


def wrong_binds() -> list[tuple[str, dict[str, Any], str]]:
    """What a stranger may say in BIND: a name, the changes, and the error that answers it."""
    layout = dataclasses.asdict(SMALL)
    other = {
        "layers": 6, "kv_heads": 1, "head_dim": 64, "dtype": "int8", "block_tokens": 16, "order": "NHD",
        "tp_rank": 1, "tp_size": 4,
    }  # fmt: skip
    out: list[tuple[str, dict[str, Any], str]] = [
        ("a wrong secret", {"secret": base64.b64encode(bytes(16)).decode()}, "TicketInvalid"),
        ("a short secret", {"secret": base64.b64encode(bytes(15)).decode()}, "InvalidArgument"),
        ("no secret", {"secret": ""}, "InvalidArgument"),
        ("another lease", {"lease": secrets.token_hex(16)}, "TicketInvalid"),
        ("no lease", {"lease": ""}, "InvalidArgument"),
        ("no transfer", {"transfer": ""}, "InvalidArgument"),
        ("no blocks", {"blocks": 0}, "InvalidArgument"),
        ("more blocks", {"blocks": 3}, "InvalidArgument"),
        ("all blocks", {"blocks": 1 << 24}, "InvalidArgument"),
        ("no time", {"remaining_ms": 0}, "InvalidArgument"),
        ("too much time", {"remaining_ms": 1 << 62}, "InvalidArgument"),
        ("no model", {"model": ""}, "InvalidArgument"),
        ("another model", {"model": "x"}, "LayoutMismatch"),
        ("another revision", {"revision": "x"}, "LayoutMismatch"),
        ("another compat", {"compat": "x"}, "LayoutMismatch"),
    ]
    for field, value in other.items():
        changed = {**layout, field: value}
        if field == "tp_rank":
            changed["tp_size"] = 2
        out.append((f"another {field}", {"layout": changed}, "LayoutMismatch"))
        if field != "tp_rank":  # 0 is the right one
            wrong = {**layout, field: "" if isinstance(value, str) else 0}
            out.append((f"a wrong {field}", {"layout": wrong}, "InvalidArgument"))
    return out


def test_binds_of_strangers(daemon: Start, attach: Attach) -> None:
    """A BIND with any one field wrong is refused, and leaves connection and lease as they were."""
    d = daemon("n0")
    client = attach(d)
    source, target = allocate(client, "source", seed=1), allocate(client, "target")
    lease = target.lease([0, 1], ttl=2 * PATIENCE)
    grant = grant_of(lease.ticket)
    right = {
        "lease": grant["lease"], "secret": grant["secret"], "transfer": secrets.token_hex(16), "attempt": 1,
        "model": MODEL, "revision": "", "compat": "", "layout": dataclasses.asdict(SMALL), "blocks": 2,
        "remaining_ms": 60000,
    }  # fmt: skip
    with RawPeer(d) as peer:
        for name, changes, code in wrong_binds():
            kind, answer = peer.ask(BIND, {**right, **changes})
            assert kind == wire.ERROR, name
            assert answer["name"] == code, (name, answer)
            assert grant["secret"] not in json.dumps(answer)
            if code == "LayoutMismatch":
                # The two of a rank belong together.
                assert name.split()[1].replace("rank", "size") in answer["field"].replace("rank", "size")
        assert target.block_states().leased == 2
        kind, answer = peer.ask(BIND, right)
        assert kind == wire.OK
        kind, answer = peer.ask(BIND, right)
        assert (kind, answer["name"]) == (wire.ERROR, "TicketBound")
    with pytest.raises(kvxfer.PeerLost) as e:  # the stranger left without a byte
        lease.wait(PATIENCE)
    assert e.value.released is True
    lease = target.lease([0, 1])
    source.write([2, 3], to=lease.ticket).wait()
    lease.wait()
