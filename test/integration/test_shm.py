"""Between daemons that share a host: shm where a socket can be opened, tcp and its reason where not."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import kvxfer
import numpy as np
import pytest

from conftest import Attach, Start, StartWorker
from contents import SMALL, allocate, choose, pieces
from daemon import PATIENCE, Daemon, until

BIG = kvxfer.Layout(layers=4, kv_heads=8, head_dim=128, dtype="uint8", block_tokens=512)
"""4 MiB a block."""
NOBODY = 65534


def move(source: kvxfer.Cache, target: kvxfer.Cache, rng: random.Random) -> kvxfer.TransferResult:
    """Move random blocks, compare them, and give what the source heard."""
    blocks, to = choose(rng, source.num_blocks, 5), choose(rng, target.num_blocks, 5)
    with target.lease(to) as lease:
        done = source.write(blocks, to=lease.ticket).wait()
        got = lease.wait()
    assert np.array_equal(pieces(source)[:, :, blocks], pieces(target)[:, :, to])
    assert done.provider == got.provider
    target.evict(to)
    return done


def between(a: Daemon, b: Daemon, rng: random.Random) -> kvxfer.TransferResult:
    """Move blocks from a client of one daemon to one of the other."""
    with a.connect() as left, b.connect() as right:
        return move(allocate(left, "between-a", seed=1), allocate(right, "between-b"), rng)


def test_two_daemons(pair: tuple[Daemon, Daemon], rng: random.Random) -> None:
    """Two daemons of one host use shm without being told that they are on one."""
    done = between(*pair, rng)
    with pair[0].connect() as client:
        status = client.status()
    assert [p for p in status.providers if p != "verbs"] == ["shm", "tcp"]
    assert ("verbs" in status.providers) != ("verbs" in status.absent), (
        "it is there or the status says why not"
    )
    assert (done.provider, done.provider_reason) == (
        "shm",
        f"shm: the dialer's first choice of {', '.join(status.providers)}",
    )


def test_one_daemon(daemon: Start, rng: random.Random) -> None:
    """Two clients of one daemon use shm too, inside the daemon's process."""
    d = daemon("both")
    done = between(d, d, rng)
    assert (done.provider, done.provider_reason) == (
        "shm",
        "shm: both clients are this daemon's, nothing leaves the process",
    )


@pytest.mark.parametrize(("left", "right"), [("tcp", "shm,tcp"), ("shm,tcp", "tcp"), ("tcp,shm", "shm,tcp")])
def test_excluded(daemon: Start, rng: random.Random, left: str, right: str) -> None:
    """--providers on either side decides, and the source's order does."""
    done = between(daemon("left", "--providers", left), daemon("right", "--providers", right), rng)
    assert done.provider == "tcp"
    assert done.provider_reason.startswith("tcp: ")


def test_nothing_in_common(daemon: Start) -> None:
    """Without a provider in common the push says so."""
    a, b = daemon("left", "--providers", "tcp"), daemon("right", "--providers", "shm")
    with a.connect() as left, b.connect() as right:
        source, target = allocate(left, "source", seed=1), allocate(right, "target")
        with target.lease([0]) as lease, pytest.raises(kvxfer.NotSupported, match="no provider in common"):
            source.write([0], to=lease.ticket).wait()


def needs_root() -> None:
    """Skip without root, and where the tools are missing."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("other users and mount namespaces need root and util-linux")


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that every user can enter, with the binary in it."""
    with tempfile.TemporaryDirectory(prefix="kvx-") as d:
        Path(d).chmod(0o755)
        yield Path(d)


@pytest.mark.parametrize("way", ["from", "to"])
def test_another_user(daemon: Start, rng: random.Random, open_dir: Path, way: str) -> None:
    """The daemon of another user is neither given memory nor asked for it, whoever dials."""
    needs_root()
    mine = daemon("mine")
    home = open_dir / "theirs"
    home.mkdir(0o700)
    os.chown(home, NOBODY, NOBODY)
    binary = open_dir / "kvxfer-race"
    shutil.copy(Daemon("unused", open_dir / "unused", open_dir)._binary, binary)
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
    theirs = Daemon("theirs", home, home, prefix=prefix, binary=binary, env={"HOME": str(home)}).start()
    try:
        done = between(theirs, mine, rng) if way == "from" else between(mine, theirs, rng)
    finally:
        theirs.stop()
    assert done.provider == "tcp"
    why = "permission denied" if way == "from" else f"of user {NOBODY}, allowed are 0 and root"
    assert done.provider_reason.startswith("tcp: shm is not usable: connect /")
    assert why in done.provider_reason


def test_unreachable_socket(daemon: Start, rng: random.Random) -> None:
    """A source whose mount namespace hides the target's socket takes tcp, says why, and logs it once."""
    needs_root()
    target = daemon("target")
    hide = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(target.state))
    source = daemon("source", prefix=hide)
    for _ in range(2):
        done = between(source, target, rng)
        assert done.provider == "tcp"
        assert done.provider_reason == (
            f"tcp: shm is not usable: connect {target.state}/shm.sock: no such file or directory"
        )
    assert source.log().count("provider does not reach the peer") == 1
    assert between(target, source, rng).provider == "shm"  # whose socket is where both can open it


@pytest.mark.parametrize("side", ["source", "target"])
def test_client_killed(
    pair: tuple[Daemon, Daemon], attach: Attach, worker: StartWorker, rng: random.Random, side: str
) -> None:
    """A client that dies in the middle: the other one hears it, and both daemons let its memory go."""
    layout = dataclasses.asdict(SMALL)
    w = worker(pair[0] if side == "source" else pair[1])
    w.call("allocate", name="theirs", layout=layout, num_blocks=8, seed=3)
    if side == "source":
        target = allocate(attach(pair[1]), "target")
        lease = target.lease([4, 2], ttl=PATIENCE)
        push = w.call("write", cache="theirs", blocks=[0, 1], ticket=lease.ticket, layerwise=True)
        w.call("layers", push=push, layers=[1])
        lease.wait_layer(1, PATIENCE)
        pending: kvxfer.Lease | kvxfer.Push = lease
    else:
        _, ticket = w.call("lease", cache="theirs", blocks=[4, 2])
        source = allocate(attach(pair[0]), "source", seed=1)
        pending = source.write([0, 1], to=ticket, layerwise=True, timeout=PATIENCE)
        pending.layer(1)
        until("bytes to arrive", lambda: w.call("visible", lease=0) == [1])
    # The source's memory is mapped by both daemons, the target's by its own alone.
    assert [mappings(d) for d in pair] == [1, 2]
    w.kill()
    with pytest.raises(kvxfer.ClientGone):
        pending.wait(PATIENCE)
    left = [0, 1] if side == "source" else [1, 1]
    until("the dead client's memory to go", lambda: [mappings(d) for d in pair] == left)
    assert between(*pair, rng).provider == "shm"


def mappings(d: Daemon) -> int:
    """The clients' memory that a daemon has mapped, its own clients' and its peers'."""
    maps = Path(f"/proc/{d.pid}/maps").read_text().splitlines()
    return sum("/memfd:" in m and "kvxfer-shm-page" not in m for m in maps)


def test_source_daemon_stopped(pair: tuple[Daemon, Daemon], attach: Attach, rng: random.Random) -> None:
    """The source's daemon stands in the middle of a transfer, the blocks are taken back, and it goes on.

    Not a byte changes: only the target's daemon ever stores into the target's memory.
    """
    prefill, decode = pair
    clients = attach(prefill), attach(decode)
    source, target = allocate(clients[0], "source", BIG, 16, seed=1), allocate(clients[1], "target", BIG, 16)
    middle = [taken_back(prefill, source, target, mark, rng) for mark in range(200, 206)]
    print(f"{sum(middle)} of {len(middle)} were taken back in the middle")


def taken_back(
    stopped: Daemon, source: kvxfer.Cache, target: kvxfer.Cache, mark: int, rng: random.Random
) -> bool:
    """One such transfer of all blocks; whether it was in its middle."""
    memory, blocks = pieces(target), list(range(target.num_blocks))
    memory[:] = 255
    lease = target.lease(blocks, ttl=2 * PATIENCE)
    push = source.write(blocks, to=lease.ticket, timeout=2 * PATIENCE)
    until("the first bytes", lambda: bool((memory[:, :, :, 0] != 255).any()) or push.poll(), pause=0)
    stopped.freeze()
    lease.revoke().wait()
    lease.wait_released(PATIENCE)
    middle = lease.exception() is not None and bool((memory == 255).any())
    memory[:] = mark
    end = time.monotonic() + rng.uniform(0, 0.1)
    until("a while", lambda: time.monotonic() > end)
    assert (memory == mark).all()
    stopped.signal(signal.SIGCONT)
    until("the push to end", lambda: push.poll() and push.released)
    until("the target to forget it", lambda: target.block_states().leased == 0)
    assert (memory == mark).all()
    if lease.exception() is None:
        target.evict(blocks)
    return middle
