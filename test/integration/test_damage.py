"""Damaged files in the state directory: a node serves what it can trust, and sets the rest aside."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Attach, Start
from contents import allocate, choose
from daemon import PATIENCE, NatsServer
from test_restart import Books, transfer

Damage = Callable[[Path, random.Random], None]


def flip(path: Path, rng: random.Random) -> None:
    """Change some bits."""
    raw = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 6)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def cut(path: Path, rng: random.Random) -> None:
    """Lose the end."""
    size = path.stat().st_size
    with path.open("r+b") as f:
        f.truncate(rng.randrange(size))


def empty(path: Path, _: random.Random) -> None:
    """Lose everything but the name."""
    path.write_bytes(b"")


def remove(path: Path, _: random.Random) -> None:
    """Lose the file."""
    path.unlink()


def noise(path: Path, rng: random.Random) -> None:
    """Other contents of the same length."""
    path.write_bytes(rng.randbytes(path.stat().st_size))


HARMS: list[Damage] = [flip, flip, cut, empty, remove, noise]


def targets(state: Path) -> list[Path]:
    """The store's files with contents, but the ballast, which has none that count."""
    blocks = state / "blocks"
    files = [p for p in blocks.rglob("*") if p.is_file() and p.stat().st_size > 0]
    return sorted(p for p in files if p.name not in ("ballast", "LOCK") and "aside." not in str(p))


def test_damaged_files(nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random) -> None:
    """File after file is damaged: the node starts, and serves all of what was committed, or nothing."""
    node = daemon("decode", "--nats", nats.url)
    prefill, decode = attach(daemon("prefill", "--nats", nats.url)), attach(node)
    source = allocate(prefill, "source", seed=rng.getrandbits(32))
    books = Books(decode, allocate(decode, "target"))
    kinds: set[str] = set()
    aside = rounds = 0
    while rounds < 14:
        rounds += 1
        for _ in range(3):
            transfer(source, choose(rng, 32, 2), books, choose(rng, 32, 2))
        evicted = rng.sample(sorted(books.committed), 1)
        books.evict(evicted)
        torn = books.lease(choose(rng, 32, 3))
        source.write([1, 2, 3], to=torn.ticket, layerwise=True).layer(0)
        torn.wait_layer(0, PATIENCE)
        node.settle()
        node.kill()
        files = targets(node.state)
        fresh = [p for p in files if p.suffix + p.name[:4] not in kinds] or files
        path, harm = rng.choice(fresh), rng.choice(HARMS)
        kinds.add(path.suffix + path.name[:4])
        harm(path, rng)
        node.start()
        served = decode.reconnect(PATIENCE)["target"].tolist()
        part = f"{len(served)} of {len(books.committed)}"
        print(f"{harm.__name__} of {path.relative_to(node.state)}: {part} served")
        if not served:
            aside += 1
            books.committed.clear()
        books.check(served)  # exactly what was committed, whole
        assert not set(served) & {*evicted, *torn.blocks}
    assert aside, "no damage was ever found: the test has shown nothing"
    kept = [p for p in (node.state / "blocks").iterdir() if p.name.startswith("aside.")]
    assert len(kept) <= 3


@pytest.mark.parametrize("harm", ["not json", "", '{"format": 99}'])
def test_damaged_record(daemon: Start, harm: str) -> None:
    """Who used the directory last cannot be read: the node does not start before somebody has looked."""
    node = daemon("n0")
    node.kill()
    record = node.state / "daemon.json"
    right = record.read_text()
    record.write_text(harm)
    node.start(wait=False)
    assert node.wait_end() == 1
    assert "StoreFailed" in node.log()
    assert "daemon.json" in node.log()
    record.write_text(right)
    node.start()
