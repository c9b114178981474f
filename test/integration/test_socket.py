"""The clients' socket: who gets in, whose file it is, and what memory is taken."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import kvxfer
import pytest
from kvxfer import _wire as wire

from conftest import Start
from daemon import PATIENCE, until
from raw import RawClient
from transfers import allocate

NOBODY = 65534

# It becomes another user only after its imports, codecs included: they may lie where that user cannot read.
AS_USER = """
import codecs, os, sys, kvxfer
codecs.lookup("ascii")
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
try:
    with kvxfer.connect(sys.argv[1]) as client:
        client.allocate_cache("of-another-user", model="m", num_blocks=1,
            layout=kvxfer.Layout(layers=1, kv_heads=1, head_dim=8, dtype="float32", block_tokens=1))
        print("served")
except kvxfer.KvxferError as e:
    print(type(e).__name__, e)
"""


def attach_as(uid: int, path: Path) -> str:
    """What a process of another user gets from the daemon."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(path), str(uid)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_dir(run_dir: Path) -> Path:
    """A directory below which every user can reach what the daemon makes."""
    run_dir.chmod(0o711)
    return run_dir


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_modes(daemon: Start, open_dir: Path) -> None:
    private, shared = open_dir / "private" / "s", open_dir / "shared" / "s"
    daemon("n0", "--socket", str(private))
    daemon("n1", "--socket", str(shared), "--allow-uid", "12345")
    assert (mode(private), mode(private.parent)) == (0o600, 0o700)
    assert (mode(shared), mode(shared.parent)) == (0o666, 0o711)


def test_users(daemon: Start, open_dir: Path) -> None:
    private, others, nobody = (open_dir / name / "s" for name in ("private", "others", "nobody"))
    d = daemon("n0", "--socket", str(private))
    assert attach_as(NOBODY, private).startswith("PermissionDenied")  # by the directory's mode
    assert "client" not in d.log()
    # This one lets others get to the socket, and looks at who they are.
    d = daemon("n1", "--socket", str(others), "--allow-uid", "12345,12346")
    refused = attach_as(NOBODY, others)
    assert refused.startswith("PermissionDenied")
    assert f"user {NOBODY}" in refused
    assert "client refused" in d.log()
    assert "client attached" not in d.log()
    daemon("n2", "--socket", str(nobody), "--allow-uid", str(NOBODY))
    assert attach_as(NOBODY, nobody) == "served\n"
    assert attach_as(0, nobody) == "served\n"


def test_stale_file_is_replaced_and_a_live_one_is_not(daemon: Start, run_dir: Path) -> None:
    path = run_dir / "shared.sock"
    first = daemon("n0", "--socket", str(path))
    second = daemon("n1", "--socket", str(path), wait=False)
    assert second.wait_end() == 1
    assert "AlreadyExists" in second.log()
    assert "socket" in second.log()
    with kvxfer.connect(str(path)) as client:
        assert client.node == "n0"
    first.kill()
    assert path.exists()
    daemon("n2", "--socket", str(path))
    with kvxfer.connect(str(path)) as client:
        assert client.node == "n2"


def test_other_files_stay(daemon: Start, run_dir: Path) -> None:
    path = run_dir / "notes.txt"
    path.write_text("of somebody")
    d = daemon("n0", "--socket", str(path), wait=False)
    assert d.wait_end() == 1
    assert "ConfigInvalid" in d.log()
    assert path.read_text() == "of somebody"


def test_socket_is_removed_at_the_end(daemon: Start) -> None:
    d = daemon("n0")
    assert d.socket.exists()
    d.stop()
    assert not d.socket.exists()
    with pytest.raises(kvxfer.DaemonUnavailable):
        d.connect()


def test_client_limit(daemon: Start) -> None:
    d = daemon("n0", "--max-clients", "2")
    first, second = d.connect(), d.connect()
    for _ in range(3):
        with pytest.raises(kvxfer.ResourceExhausted, match="2 clients are connected, allowed 2"):
            d.connect()
    assert first.status().clients == 2
    second.close()
    until("the second to be forgotten", lambda: first.status().clients == 1)
    with d.connect() as third:
        allocate(third, "cache")
    first.close()


SIZE = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memfd(allocated: int = SIZE, seals: int = SEALS, flags: int = os.MFD_ALLOW_SEALING) -> int:
    """A memory object of SIZE bytes."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, SIZE)
    if allocated:
        os.posix_fallocate(fd, 0, allocated)
    if flags:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def of_a_file() -> int:
    with tempfile.TemporaryFile() as f:
        f.truncate(SIZE)
        return os.dup(f.fileno())


@pytest.mark.parametrize(
    ("make", "declared", "field"),
    [
        (lambda: memfd(allocated=0), SIZE, "allocation"),
        (lambda: memfd(allocated=SIZE - 4096), SIZE, "allocation"),
        (lambda: memfd(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), SIZE, "seals"),
        (lambda: memfd(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), SIZE, "seals"),
        (lambda: memfd(seals=SEALS | fcntl.F_SEAL_WRITE), SIZE, "seals"),
        (lambda: memfd(flags=0), SIZE, "seals"),
        (memfd, SIZE + 1, "size"),
        (memfd, SIZE - 4096, "size"),
        (lambda: os.open("/dev/zero", os.O_RDWR), SIZE, "kind"),
        (lambda: os.pipe()[0], SIZE, "kind"),
        (of_a_file, SIZE, ""),  # which field depends on the file system of temporary files
    ],
)
def test_memory_that_is_refused(daemon: Start, make: Callable[[], int], declared: int, field: str) -> None:
    d = daemon("n0")
    fd = make()
    try:
        with RawClient(d.socket) as client:
            client.hello()
            kind, error = client.register(fd, declared)
            assert kind == wire.ERROR
            assert error["name"] == "MemoryRejected"
            assert error["region"] == "region"
            assert not field or error["field"] == field
            good = memfd()
            kind, _ = client.register(good, SIZE)  # the connection goes on
            assert kind == wire.OK
            os.close(good)
    finally:
        os.close(fd)
