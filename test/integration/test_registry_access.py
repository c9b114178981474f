"""The registry behind credentials and TLS: who gets in, and what is said of a refusal."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import CERTMAKER, Certificates
from conftest import Start
from daemon import NATS_SERVER, Daemon, free_port, until
from transfers import allocate, move


def together(*daemons: Daemon) -> None:
    """Wait until each knows all."""
    names = sorted(d.name for d in daemons)
    for d in daemons:
        with d.connect() as client:
            until("all nodes", lambda c=client: sorted(c.status().nodes) == names)  # type: ignore[misc]


def tells_nothing(secret: str, *daemons: Daemon) -> None:
    """The secret is in no log, no command line and no answer."""
    for d in daemons:
        assert secret not in d.log()
        if d.running:
            assert secret not in Path(f"/proc/{d.pid}/cmdline").read_text()
            assert secret not in d.get("/status")[1]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path, Certificates]]:
    """A NATS server with accounts and TLS: its URL, where the users' credentials are, and the authorities."""
    certs = Certificates(tmp_path / "certs", "ours/nats=localhost", "theirs/nats=localhost")
    subprocess.run(
        [str(CERTMAKER), str(tmp_path), "nats:accounts=node", "nats:strangers=node"],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    at, port = certs.folder("ours/nats"), free_port()
    config = tmp_path / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream: {{store_dir: "{tmp_path}/js"}}\n'
        f'tls: {{cert_file: "{at}/node.crt", key_file: "{at}/node.key"}}\n'
        + (tmp_path / "accounts" / "server.conf").read_text()
    )
    server = subprocess.Popen(
        [str(NATS_SERVER), "-c", str(config)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def accepts() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    until("the NATS server", accepts)
    yield f"tls://localhost:{port}", tmp_path, certs
    server.kill()
    server.wait()


def test_accounts(guarded: tuple[str, Path, Certificates], daemon: Start, rng: random.Random) -> None:
    url, base, certs = guarded
    trusted = f"--nats-tls-ca={certs.folder('ours/nats')}/ca.crt"
    creds = base / "accounts" / "node.creds"
    a, b = (daemon(n, "--nats", url, trusted, f"--nats-creds={creds}", "--registry-replicas=1") for n in "ab")
    together(a, b)
    with a.connect() as near, b.connect() as far:
        move(allocate(near, "source"), allocate(far, "target"), rng)
    seed = next(line for line in creds.read_text().splitlines() if line.startswith("SU"))
    tells_nothing(seed, a, b)
    strange, mine = f"--nats-creds={base}/strangers/node.creds", f"--nats-creds={creds}"
    # A server that is away would be waited for, and be RegistryUnavailable.
    for name, args, code, field in [
        ("stranger", [trusted, strange], "PermissionDenied", "nats-creds"),
        ("nobody", [trusted], "PermissionDenied", "nats"),
        ("doubter", [f"--nats-tls-ca={certs.folder('theirs/nats')}/ca.crt"], "ConfigInvalid", "nats-tls-ca"),
        ("lost", [trusted, f"--nats-creds={base}/none"], "ConfigInvalid", "nats-creds"),
        ("crowd", [trusted, mine, "--registry-replicas=3"], "ConfigInvalid", "registry-replicas"),
    ]:
        d = daemon(name, "--nats", url, *args, wait=False)
        assert d.wait_end() == 1
        assert f'{code} field=\\"{field}\\"' in d.log(), d.log()


def test_embedded_with_a_token(daemon: Start, tmp_path: Path, rng: random.Random) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    token.write_text("open-sesame\n")
    other.write_text("open-barley\n")
    certs = Certificates(tmp_path / "certs", "ours/nats=localhost")
    at = certs.folder("ours/nats")
    a = daemon(
        "a", "--nats-listen=0.0.0.0:0", f"--nats-token-file={token}",
        f"--nats-tls-cert={at}/node.crt", f"--nats-tls-key={at}/node.key",
    )  # fmt: skip
    url = f"tls://localhost:{a.info['nats_url'].rpartition(':')[2]}"
    trusted = f"--nats-tls-ca={at}/ca.crt"
    b = daemon("b", "--nats", url, f"--nats-token-file={token}", trusted)
    together(a, b)
    with a.connect() as near, b.connect() as far:
        move(allocate(near, "source"), allocate(far, "target"), rng)
    c = daemon("c", "--nats", url, f"--nats-token-file={other}", trusted, wait=False)
    assert c.wait_end() == 1
    assert 'PermissionDenied field=\\"nats-token-file\\"' in c.log(), c.log()
    assert "without credentials" not in a.log()
    tells_nothing("open-sesame", a, b, c)
    tells_nothing("open-barley", c)
    d = daemon("d", "--nats-listen=0.0.0.0:0", wait=False)
    assert d.wait_end() == 2
    assert "whoever reaches it could change the registry" in d.log()
