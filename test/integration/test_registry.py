"""The registry as a server of its own that comes and goes, and as one that a daemon embeds."""

from __future__ import annotations

import random

import kvxfer
import pytest

from conftest import Start
from daemon import PATIENCE, Daemon, NatsServer, free_port, until
from transfers import allocate, move

LIVELY = ("--heartbeat", "200ms")
"""A node is seen for a second without a heartbeat."""


def sees(client: kvxfer.Client, *nodes: str) -> None:
    """Wait until the client's daemon is connected and knows exactly these nodes."""

    def seen() -> bool:
        status = client.status()
        return status.registry_connected and sorted(status.nodes) == sorted(nodes)

    until(f"{client.node} to see {nodes}", seen)


def has(nats: NatsServer, *caches: str) -> None:
    """Wait until exactly these caches are announced."""

    def there() -> bool:
        return sorted(e.split(".")[3] for e in nats.entries() if e.startswith("cache.")) == sorted(caches)

    try:
        until(f"{caches} in the registry", there)
    except AssertionError as e:
        raise AssertionError(f"{e}; it has {nats.entries()}") from None


def test_nodes_see_each_other(nats: NatsServer, daemon: Start) -> None:
    nodes = [daemon(name, "--nats", nats.url) for name in ("n0", "n1", "n2")]
    clients = [n.connect() for n in nodes]
    for client in clients:
        sees(client, "n0", "n1", "n2")
    allocate(clients[0], "kept")
    dropped = allocate(clients[1], "dropped")
    has(nats, "kept", "dropped")
    dropped.drop()
    has(nats, "kept")
    nodes[2].stop()  # says goodbye: nobody waits for a time to live
    sees(clients[0], "n0", "n1")
    for client in clients:
        client.close()


def test_transfers_go_on_without_the_registry(nats: NatsServer, daemon: Start, rng: random.Random) -> None:
    a, b = (daemon(name, *LIVELY, "--nats", nats.url) for name in ("a", "b"))
    with a.connect() as near, b.connect() as far:
        sees(near, "a", "b")
        source, target = allocate(near, "source"), allocate(far, "target")
        move(source, target, rng)  # the nodes know each other, in this direction

        nats.kill()
        until("a to notice", lambda: not near.status().registry_connected)
        assert sorted(near.status().nodes) == ["a", "b"]
        move(source, target, rng)
        move(target, source, rng)  # a link that is made only now, by the ticket's address
        late = allocate(far, "late")  # announced when somebody listens again
        move(source, late, rng)

        nats.start()  # its memory is empty
        has(nats, "source", "target", "late")
        sees(near, "a", "b")
        with daemon("c", *LIVELY, "--nats", nats.url).connect() as new:
            sees(new, "a", "b", "c")
            move(allocate(new, "new"), target, rng)
        assert "PeerLost" not in a.log() + b.log()
        nats.kill()
        a.stop()  # ends without its registry, too


def test_nothing_is_stale_after_an_outage(nats: NatsServer, daemon: Start, rng: random.Random) -> None:
    """What ended while the registry was away is not there when it is back, and what began is."""
    a, b, c = (daemon(name, *LIVELY, "--nats", nats.url) for name in ("a", "b", "c"))
    with a.connect() as near, b.connect() as far:
        sees(near, "a", "b", "c")
        kept, target, dropped = allocate(near, "kept"), allocate(far, "target"), allocate(far, "dropped")
        has(nats, "kept", "target", "dropped")
        old = b.info["epoch"]
        nats.kill()
        for _ in range(3):
            move(kept, target, rng)
            move(target, kept, rng)
        dropped.drop()
        allocate(far, "made")
        c.kill()
        nats.start()
        has(nats, "kept", "target", "made")
        sees(near, "a", "b")
        sees(far, "a", "b")
        assert {e.split(".")[2] for e in nats.entries() if e.startswith("cache.b.")} == {old}
        move(kept, target, rng)


def test_killed_node_vanishes(nats: NatsServer, daemon: Start) -> None:
    a, b = (daemon(name, *LIVELY, "--nats", nats.url) for name in ("a", "b"))
    with a.connect() as client:
        sees(client, "a", "b")
        b.kill()
        sees(client, "a")  # until() bounds it
        b.start()
        sees(client, "a", "b")


def test_name_of_a_live_node_is_refused(nats: NatsServer, daemon: Start) -> None:
    first = daemon("twin", "--nats", nats.url)
    second = daemon("other", "--nats", nats.url, "--node", "twin", wait=False)
    assert second.wait_end() == 1
    assert "NameTaken" in second.log()
    assert not second.socket.exists()
    with first.connect() as client:  # and the first did not notice
        sees(client, "twin")


def test_restarted_node_takes_its_name_over(nats: NatsServer, daemon: Start, rng: random.Random) -> None:
    # With the default heartbeat the dead incarnation's entry outlives this test: only a take-over starts.
    a = daemon("a", "--nats", nats.url, "--listen", f"127.0.0.1:{free_port()}")
    b = daemon("b", "--nats", nats.url)
    with b.connect() as far:
        old = a.info["epoch"]
        target = allocate(far, "target")
        with a.connect() as near:
            move(allocate(near, "source"), target, rng)
            ticket = allocate(near, "leased").lease([0]).ticket
            a.kill()
        a.start()
        assert a.info["epoch"] != old
        sees(far, "a", "b")
        with pytest.raises(kvxfer.StaleEpoch):
            target.write([0], to=ticket, timeout=PATIENCE).wait()
        with a.connect() as near:
            source = allocate(near, "source")
            move(source, target, rng)
            move(target, source, rng)


def test_embedded_server_for_two(pair: tuple[Daemon, Daemon], rng: random.Random) -> None:
    prefill, decode = pair
    with prefill.connect() as near, decode.connect() as far:
        sees(near, "decode", "prefill")
        sees(far, "decode", "prefill")
        move(allocate(near, "source"), allocate(far, "target"), rng)
