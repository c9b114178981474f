"""Blocks that an engine computed itself: published under keys, found on every node, opened and read."""

from __future__ import annotations

import random
import secrets

import pytest

from conftest import Start
from daemon import Daemon, NatsServer, until
from ranks import PUBLISH, Rank, RequestError, code, packed


@pytest.fixture
def daemons(nats: NatsServer, daemon: Start) -> list[Daemon]:
    return [daemon(name, "--nats", nats.url) for name in ("a", "b")]


def test_published_blocks_are_found_and_read(daemons: list[Daemon], rng: random.Random) -> None:
    owner, reader = Rank(daemons[0], "owner"), Rank(daemons[1], "reader")
    owner.memory[:] = rng.randbytes(len(owner.memory))
    keys = [secrets.token_bytes(32) for _ in range(4)]
    owner.publish(keys[:3], 5, 0, 9)
    until("the owner to be found", lambda: reader.lookup(keys)["holders"])
    found = reader.lookup(keys)
    assert found.get("unasked", []) == []
    (holder,) = found["holders"]
    assert (holder["node"], holder["cache"], holder["blocks"]) == ("a", "owner-0", 3)
    assert reader.lookup(keys, local_only=True)["holders"] == []
    assert reader.lookup(keys, compat="another")["holders"] == []
    assert reader.lookup(keys[3:])["holders"] == []

    ticket = reader.open(holder, keys[:3])
    assert owner.states()["held"] == 3
    end = reader.pull(ticket, 1, 2, 3)
    assert code(end) == ""
    assert end["generation"] > 0
    assert [reader.block(b) for b in (1, 2, 3)] == [owner.block(b) for b in (5, 0, 9)]
    owner.until_states(held=0, committed=3)
    with pytest.raises(RequestError) as refused:
        reader.open(holder, keys)
    assert refused.value.body["name"] == "NotFound"
    assert "3 of 4" in refused.value.body["detail"]

    ticket = reader.open(holder, keys[:1])
    owner.call(0x15, {"cache": owner.cache_id}, packed(5))
    assert code(reader.pull(ticket, 1)) == "LeaseRevoked"
    assert reader.lookup(keys)["holders"] == []
    assert owner.events == []  # of what others read the owner is not told
    owner.close()
    reader.close()


def test_keys_survive_the_daemons_kill_where_vouched_for(daemons: list[Daemon]) -> None:
    daemon = daemons[0]
    owner = Rank(daemon, "owner")
    keys = [b"%08d" % i for i in range(4)]
    generation = owner.publish(keys, 1, 2, 3, 4)
    daemon.settle()
    daemon.kill()
    daemon.start()
    vouches = [(1, generation), (2, generation), (3, generation + 1)]
    again = Rank(daemon, "owner", former=owner, vouches=vouches)
    assert again.served == packed(1, 2)
    (holder,) = again.lookup(keys, local_only=True)["holders"]
    assert holder["blocks"] == 2
    assert again.lookup(keys[3:], local_only=True)["holders"] == []
    again.close()


def test_a_node_that_is_lost_is_named(daemons: list[Daemon]) -> None:
    owner, reader = Rank(daemons[0], "owner"), Rank(daemons[1], "reader")
    keys = [secrets.token_bytes(8)]
    owner.publish(keys, 1)
    until("the owner to be found", lambda: reader.lookup(keys)["holders"])
    daemons[0].kill()
    found = reader.lookup(keys)
    assert (found["holders"], found["unasked"]) == ([], ["a"])
    owner.close()
    reader.close()


def test_wrong_keys_are_refused(daemons: list[Daemon]) -> None:
    owner = Rank(daemons[0], "owner")
    for body, array, field in (
        ({"cache": owner.cache_id, "key_bytes": 0}, b"", "key_bytes"),
        ({"cache": owner.cache_id, "key_bytes": 8}, packed(1) + b"short", "keys"),
        ({"cache": owner.cache_id, "key_bytes": 1}, packed(99) + b"k", "blocks"),
    ):
        with pytest.raises(RequestError) as refused:
            owner.call(PUBLISH, body, array)
        assert refused.value.body["field"] == field
    owner.close()
