"""Blocks by key, by the SDK: published on one node, looked up, read and taken back on another."""

from __future__ import annotations

import dataclasses
import random
import signal
from typing import Any

import kvxfer
import numpy as np
import pytest

from conftest import Attach
from contents import MODEL, SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, until

Nodes = tuple[Daemon, Daemon]

BIG = kvxfer.Layout(layers=4, kv_heads=8, head_dim=128, dtype="uint8", block_tokens=256)
"""2 MiB a block."""


def keys_of(rng: random.Random, blocks: int, layout: kvxfer.Layout = SMALL) -> list[bytes]:
    """The keys of a random prompt of so many blocks, and the beginning of another one."""
    tokens = [rng.randrange(1 << 17) for _ in range((blocks + 1) * layout.block_tokens - 1)]
    keys = kvxfer.chain_keys(tokens, layout.block_tokens)
    assert len(keys) == blocks
    return keys


def holder_of(client: kvxfer.Client, keys: list[bytes], like: kvxfer.Cache) -> kvxfer.Holder:
    """Who has the longest beginning, as soon as the directory knows anybody who has."""
    until("a holder", lambda: client.lookup(keys, like=like, timeout=PATIENCE).prefix > 0)
    return client.lookup(keys, like=like, timeout=PATIENCE).holders[0]


@pytest.mark.parametrize(("nodes", "provider"), [("tcp", "tcp"), ("shm", "shm")], indirect=["nodes"])
def test_published_found_and_read(nodes: Nodes, attach: Attach, rng: random.Random, provider: str) -> None:
    """The longest prefix is found with its holders, the longest first, and what is read are its bytes."""
    ours, theirs = attach(nodes[0]), attach(nodes[1])
    short, long = (allocate(ours, n, seed=rng.getrandbits(32)) for n in ("short", "long"))
    reader = allocate(theirs, "reader")
    keys = keys_of(rng, 6)
    at = choose(rng, 32, 5)
    assert long.publish(at, keys[:5]) > 0
    short.publish(choose(rng, 32, 2), keys[:2])
    until("both to be found", lambda: len(theirs.lookup(keys, like=reader).holders) == 2)
    found = theirs.lookup(keys, like=reader, timeout=PATIENCE)
    assert (found.prefix, found.unasked) == (5, ())
    assert [(h.node, h.cache, h.blocks) for h in found.holders] == [
        ("prefill", "long", 5),
        ("prefill", "short", 2),
    ]
    assert theirs.lookup(keys, like=reader, local_only=True).prefix == 0
    assert theirs.lookup(keys_of(rng, 2), like=reader, timeout=PATIENCE).prefix == 0
    assert ours.lookup(keys, model=MODEL, layout=SMALL, local_only=True).prefix == 5

    to = choose(rng, 32, 5)
    done = reader.read(to, source=found.holders[0], keys=keys[:5], timeout=PATIENCE).wait()
    assert (done.provider, done.peer, done.bytes) == (provider, "prefill", 5 * SMALL.block_bytes)
    assert np.array_equal(pieces(reader)[:, :, to], pieces(long)[:, :, at])
    with pytest.raises(kvxfer.NotFound):
        reader.read([to[0]], source=found.holders[0], keys=keys[5:], timeout=PATIENCE).wait()
    until("nothing to be held", lambda: long.block_states().held == 0)

    # What was read is a holder's too once it is published, and evicted blocks are found no more.
    reader.publish(to[:3], keys[:3])
    assert ours.lookup(keys, like=long, timeout=PATIENCE).holders[0].cache == "long"
    long.evict(at)
    found = ours.lookup(keys, like=long, timeout=PATIENCE)
    assert [(h.cache, h.blocks) for h in found.holders] == [("reader", 3), ("short", 2)]


@pytest.mark.parametrize("nodes", ["tcp", "shm"], indirect=True)
def test_evicted_under_a_reader(nodes: Nodes, attach: Attach, rng: random.Random) -> None:
    """The reader's daemon stands in the middle of a read, the blocks are evicted and used again: the read
    ends with LeaseRevoked, and nothing that was read counts."""
    owner = allocate(attach(nodes[0]), "owner", BIG, 32)
    reader = allocate(client := attach(nodes[1]), "reader", BIG, 32)
    keys = keys_of(rng, 24, BIG)
    for _ in range(20):
        pieces(owner)[:], pieces(reader)[:] = 1, 0
        at, to = choose(rng, 32, 24), choose(rng, 32, 24)
        owner.publish(at, keys)
        pull = reader.read(to, source=holder_of(client, keys, reader), keys=keys, timeout=PATIENCE)
        first = pieces(reader)[0, 0, to[0]]
        until("a piece", lambda view=first, end=pull: int(view[0]) or end.poll(), pause=0)  # type: ignore[misc]
        nodes[1].freeze()
        owner.evict(at)
        pieces(owner)[:] = 2  # nobody can read them any more
        nodes[1].signal(signal.SIGCONT)
        pull.wait_released(PATIENCE)
        if pull.exception() is not None:
            break
        assert (pieces(reader)[:, :, to] == 1).all()
        reader.evict(to)
    else:
        raise AssertionError("no read was ever in the middle: the test has watched nothing")
    with pytest.raises(kvxfer.LeaseRevoked):
        pull.wait()
    assert reader.block_states().free == 32
    assert client.lookup(keys, like=reader, timeout=PATIENCE).prefix == 0
    assert owner.block_states().free == 32


def test_a_restart_keeps_what_is_vouched_for(nodes: Nodes, attach: Attach, rng: random.Random) -> None:
    """After kill -9 of the owner's daemon the blocks that the client still has are found again."""
    owner = allocate(ours := attach(nodes[0]), "owner", seed=rng.getrandbits(32))
    reader = allocate(theirs := attach(nodes[1]), "reader")
    keys = keys_of(rng, 5)
    at = choose(rng, 32, 5)
    owner.publish(at, keys)
    before = holder_of(theirs, keys, reader)
    owner.lease(at[3:4]).revoke().wait(PATIENCE)  # what it held is given up: it is not vouched for
    nodes[0].settle()
    nodes[0].kill()
    assert theirs.lookup(keys, like=reader, timeout=PATIENCE).prefix == 0
    nodes[0].start()
    assert sorted(ours.reconnect(PATIENCE)["owner"]) == sorted(set(at) - {at[3]})
    after = holder_of(theirs, keys, reader)
    assert (after.blocks, after.cache) == (3, "owner")
    assert after.epoch != before.epoch
    with pytest.raises(kvxfer.KvxferError) as stale:
        reader.read([0], source=before, keys=keys[:1], timeout=PATIENCE).wait()
    assert isinstance(stale.value, kvxfer.StaleEpoch | kvxfer.PeerUnreachable), repr(stale.value)
    reader.read([4, 5, 6], source=after, keys=keys[:3], timeout=PATIENCE).wait()
    assert np.array_equal(pieces(reader)[:, :, [4, 5, 6]], pieces(owner)[:, :, at[:3]])


OTHERS: dict[str, Any] = {
    "model": "another",
    "revision": "r2",
    "compat": "int4",
    "layout.kv_heads": 4,
    "layout.dtype": "int8",
    "layout.order": "NHD",
}


def test_another_kind_is_no_holder(nodes: Nodes, attach: Attach, rng: random.Random) -> None:
    """A cache that differs finds nobody; with a holder it has from elsewhere it is refused by the field."""
    owner = allocate(attach(nodes[0]), "owner", seed=1)
    client = attach(nodes[1])
    reader = allocate(client, "reader")
    keys = keys_of(rng, 2)
    owner.publish([3, 4], keys)
    holder = holder_of(client, keys, reader)
    for i, (field, value) in enumerate(OTHERS.items()):
        about: dict[str, Any] = {"model": MODEL, "layout": SMALL}
        if "." in field:
            about["layout"] = dataclasses.replace(SMALL, **{field.split(".")[1]: value})
        else:
            about[field] = value
        wrong = client.allocate_cache(f"wrong-{i}", num_blocks=2, **about)
        assert client.lookup(keys, like=wrong, timeout=PATIENCE).prefix == 0, field
        pull = wrong.read([0, 1], source=holder, keys=keys, timeout=PATIENCE)
        with pytest.raises(kvxfer.LayoutMismatch) as refused:
            pull.wait(PATIENCE)
        assert (refused.value.field, refused.value.peer) == (field, "prefill")
        assert refused.value.released is True
        assert not refused.value.may_have_written
        assert not pieces(wrong).any()
        wrong.drop()
    assert owner.block_states().held == 0
    reader.read([0, 1], source=holder, keys=keys, timeout=PATIENCE).wait()
