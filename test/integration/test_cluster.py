"""The registry on a cluster of three NATS servers, which lose one, and all, while daemons move blocks."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import kvxfer
import pytest

from conftest import Start
from daemon import Daemon, until
from natscluster import SIZE, NatsCluster
from transfers import allocate, move

LIVELY = ("--heartbeat", "200ms", "--registry-replicas", "3")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    """Three running servers."""
    servers = NatsCluster(tmp_path / "cluster")
    servers.start(*range(SIZE))
    yield servers
    servers.kill(*range(SIZE))


class Traffic:
    """Moves blocks from one daemon to the other until told to stop; each byte is compared."""

    def __init__(self, a: Daemon, b: Daemon, seed: int) -> None:
        self.moved = 0
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(a, b, random.Random(seed)))
        self._thread.start()

    def _run(self, a: Daemon, b: Daemon, rng: random.Random) -> None:
        try:
            with a.connect() as near, b.connect() as far:
                source, target = allocate(near, "source"), allocate(far, "target")
                while not self._end.wait(0.02):
                    move(source, target, rng, count=4)
                    move(target, source, rng, count=4)
                    self.moved += 2
        except BaseException as e:  # told to the test by check
            self.error = e

    def check(self) -> None:
        """Wait for some more transfers; a failed one fails the test."""
        before = self.moved
        until("transfers to go on", lambda: self.error is not None or self.moved >= before + 4)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End it."""
        self._end.set()
        self._thread.join()


def sees(client: kvxfer.Client, *nodes: str) -> None:
    """Wait until the client's daemon is connected and knows exactly these nodes."""

    def seen() -> bool:
        status = client.status()
        return status.registry_connected and sorted(status.nodes) == sorted(nodes)

    until(f"{client.node} to see {nodes}", seen)


def refuse_a_second(daemon: Start, cluster: NatsCluster, first: Daemon, round_: int) -> None:
    """A second daemon of a name ends, and the first goes on."""
    twin = daemon(f"twin{round_}", *LIVELY, "--nats", cluster.url, "--node", first.name, wait=False)
    assert twin.wait_end() == 1
    assert "NameTaken" in twin.log()
    assert first.running


def test_losing_servers(cluster: NatsCluster, daemon: Start, rng: random.Random) -> None:
    a, b, c = (daemon(name, *LIVELY, "--nats", cluster.url) for name in ("a", "b", "c"))
    stream = cluster.stream()
    assert stream["config"]["num_replicas"] == SIZE
    assert stream["config"]["storage"] == "memory"
    traffic = Traffic(a, b, rng.randrange(1 << 30))
    try:
        with a.connect() as near, b.connect() as far:
            sees(near, "a", "b", "c")
            cluster.wait_whole()
            # The leader of the bucket, then the cluster's (which may be the same), then whoever was spared.
            spared = set(range(SIZE))
            for which in ("stream", "meta", "spared"):
                if which == "spared":
                    victim = min(spared) if spared else 0
                else:
                    victim = cluster.stream_leader() if which == "stream" else cluster.meta_leader()
                spared.discard(victim)
                cluster.kill(victim)
                new = daemon(f"new-{which}", *LIVELY, "--nats", cluster.url)
                sees(near, "a", "b", "c", new.name)
                sees(far, "a", "b", "c", new.name)
                traffic.check()
                new.kill()
                sees(near, "a", "b", "c")
                sees(far, "a", "b", "c")
                cluster.start(victim)
                cluster.wait_whole()
                traffic.check()
            refuse_a_second(daemon, cluster, a, 0)

            c.freeze()
            sees(near, "a", "b")
            sees(far, "a", "b")
            c.signal(signal.SIGCONT)
            sees(near, "a", "b", "c")
            sees(far, "a", "b", "c")

            cluster.forget()
            traffic.check()
            assert sorted(near.status().nodes) == ["a", "b", "c"]
            c.kill()  # while nobody listens
            cluster.start(*range(SIZE))
            # Whether it comes first to a registry that knows nobody, or second.
            refuse_a_second(daemon, cluster, b, 1)
            sees(near, "a", "b")
            sees(far, "a", "b")

            def rebuilt() -> bool:
                keys = [k.split(".")[2:] for k in cluster.stream()["state"].get("subjects") or {}]
                caches = sorted((k[1], k[3]) for k in keys if k[0] == "cache")
                return caches == [("a", "source"), ("b", "target")]

            until("the caches to be announced again", rebuilt)
            traffic.check()
    finally:
        traffic.stop()
    assert traffic.error is None
    assert "PeerLost" not in a.log() + b.log()
