"""TLS between daemons: who is believed, what happens to everybody else, and certificates that change."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import random
import re
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import kvxfer
import pytest
from kvxfer import _wire as wire

from certificates import Certificates
from conftest import Start
from daemon import PATIENCE, ROOT, Daemon, command, until
from transfers import allocate, begin, move

LANES = ["--providers", "tcp"]
"""Payload goes over lanes, as between hosts; the daemons of one host would use shm."""


@pytest.fixture
def certs(tmp_path: Path) -> Certificates:
    """Of two authorities; "both/..." trusts both."""
    return Certificates(
        tmp_path / "certs",
        *("ours/prefill=prefill", "ours/decode=decode", "ours/other=other", "ours/expired=prefill,expired"),
        *("theirs/prefill=prefill", "theirs/decode=decode", "theirs/friend=prefill,trusts:theirs+ours"),
    )


_rounds = itertools.count()


def both_ways(nodes: list[Daemon], rng: random.Random) -> None:
    """Move blocks from each node to the other."""
    with nodes[0].connect() as left, nodes[1].connect() as right:
        n = next(_rounds)  # the caches of a client that has just left may not be gone yet
        here, there = allocate(left, f"here-{n}"), allocate(right, f"there-{n}")
        move(here, there, rng)
        move(there, here, rng)


def refusal(source: Daemon, target: Daemon) -> kvxfer.PermissionDenied:
    """Why a push is refused; the target's blocks are its own again, unwritten."""
    with source.connect() as left, target.connect() as right:
        here, there = allocate(left, "here"), allocate(right, "there")
        there.memory[:] = b"\xaa" * len(there.memory)
        with there.lease([1, 2], ttl=PATIENCE) as lease, pytest.raises(kvxfer.PermissionDenied) as refused:
            here.write([3, 4], to=lease.ticket, timeout=PATIENCE).wait()
        assert bytes(there.memory) == b"\xaa" * len(there.memory)
        assert not refused.value.may_have_written
        return refused.value


def lanes(node: Daemon, tls: bool) -> int:
    """How many lanes of a kind a daemon has logged."""
    return len(re.findall(rf'"?lane attached"?.* tls={str(tls).lower()} ', node.log()))


@pytest.mark.parametrize("more", [[], ["--tls-lanes"]])
def test_transfer(daemon: Start, certs: Certificates, rng: random.Random, more: list[str]) -> None:
    flags = [*more, *LANES, "--log-level=debug"]
    nodes = [daemon(n, *certs.flags(f"ours/{n}", *flags)) for n in ("prefill", "decode")]
    both_ways(nodes, rng)
    for node in nodes:
        assert "certificates loaded" in node.log()
        assert "BEGIN" not in node.log()
        assert (lanes(node, True) > 0, lanes(node, False) > 0) == (bool(more), not more)


def test_lanes_of_two_minds(daemon: Start, certs: Certificates, rng: random.Random) -> None:
    """A target decides where the source has certificates; a source that wants TLS takes nothing less."""
    strict = daemon("prefill", *certs.flags("ours/prefill", "--tls-lanes", *LANES))
    plain = daemon("decode", *certs.flags("ours/decode", *LANES))
    with plain.connect() as left, strict.connect() as right:
        move(allocate(left, "from"), allocate(right, "to"), rng)
    assert "payload over TLS only" in str(refusal(strict, plain))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("theirs/prefill", "certificate is not accepted"),
        ("theirs/friend", "does not accept this node's certificate"),
        ("ours/expired", "does not accept this node's certificate"),
    ],
)
def test_wrong_certificates(daemon: Start, certs: Certificates, place: str, why: str) -> None:
    source = daemon("prefill", *certs.flags(place))
    target = daemon("decode", *certs.flags("ours/decode"))
    assert why in str(refusal(source, target))
    if place != "theirs/prefill":
        assert "peer refused" in target.log()
    assert ("outside its time" in source.log()) == (place == "ours/expired")


def test_another_node_answers(daemon: Start, certs: Certificates) -> None:
    """A ticket's node is who must answer: a node of the same authority behind its address is not believed."""
    source = daemon("prefill", *certs.flags("ours/prefill"))
    target = daemon("decode", *certs.flags("ours/decode"))
    other = daemon("other", *certs.flags("ours/other"))
    with source.connect() as left, target.connect() as right:
        here, there = allocate(left, "here"), allocate(right, "there")
        lease = there.lease([1])
        fake = forge(lease.ticket, other.info["peer_addr"])
        with pytest.raises(kvxfer.PermissionDenied, match='does not name node "decode"'):
            here.write([0], to=fake, timeout=PATIENCE).wait()
        lease.revoke().wait()


def forge(ticket: str, addr: str) -> str:
    """A ticket with another address."""
    raw = ticket.removeprefix("kvx1.")
    body = json.loads(base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
    body["grants"][0]["addr"] = addr
    return "kvx1." + base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")


def test_clear_and_tls(daemon: Start, certs: Certificates) -> None:
    secure = daemon("prefill", *certs.flags("ours/prefill"))
    clear = daemon("decode")
    assert "speaks without" in str(refusal(secure, clear))
    assert "requires TLS" in str(refusal(clear, secure))


def test_visitors(daemon: Start, certs: Certificates) -> None:
    """A port with TLS says what it wants, and takes nobody without a certificate."""
    node = daemon("decode", *certs.flags("ours/decode"))
    host, _, port = node.info["peer_addr"].rpartition(":")

    def visit() -> socket.socket:
        return socket.create_connection((host, int(port)), PATIENCE)

    with visit() as s:
        s.sendall(b"KVXF" + bytes(28))
        (frame,) = wire.Parser().feed(b"".join(iter(lambda: s.recv(1 << 16), b"")))
        assert (frame.kind, frame.request, frame.body()["name"]) == (wire.ERROR, 0, "PermissionDenied")
        assert "requires TLS" in frame.body()["detail"]

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certs.folder("ours/decode") / "ca.crt")
    context.set_alpn_protocols(["kvxfer/1"])
    with (
        visit() as s,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context.wrap_socket(s) as t,
    ):
        t.recv(1)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    at = certs.folder("ours/other")
    context.load_cert_chain(at / "node.crt", at / "node.key")
    with visit() as s, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(s)
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    with visit() as s, context.wrap_socket(s) as t:  # so it was the certificate and the version
        assert t.version() == "TLSv1.3"


def knock(node: Daemon) -> bool:
    """Begin a handshake, in which a daemon looks at its files; says whether it has loaded another set."""
    host, _, port = node.info["peer_addr"].rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["kvxfer/1"])
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), PATIENCE) as s,
        context.wrap_socket(s),
    ):
        pass
    return node.log().count("certificates loaded") > 1


def test_certificates_change_under_load(daemon: Start, certs: Certificates, rng: random.Random) -> None:
    """Links that are there go on, new ones use the new certificates; a broken set changes nothing."""
    flags = ["--tls-lanes", *LANES]
    source = daemon("prefill", *certs.flags("ours/prefill", *flags))
    target = daemon("decode", *certs.flags("ours/decode", *flags))
    other = daemon("other", *certs.flags("ours/other", *flags))
    with source.connect() as left, target.connect() as right, other.connect() as third:
        here, there = allocate(left, "here"), allocate(right, "there")
        load, beside = allocate(third, "load"), allocate(right, "beside")
        push, lease = begin(here, there)
        stop = threading.Event()
        failed: list[BaseException] = []
        moves: list[int] = []

        def work() -> None:
            own = random.Random(rng.random())
            try:
                while not stop.is_set():
                    move(load, beside, own)
                    moves.append(1)
            except BaseException as e:  # told by the test's own thread
                failed.append(e)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            until(
                "the load's link", lambda: moves or failed
            )  # the target's authority signs nobody's new one below
            certs.replace("ours/decode", "theirs/decode")
            until("the new certificates to be loaded", lambda: knock(target), pause=0.2)
            before = len(moves)
            until("a transfer under load", lambda: len(moves) > before + 2 or failed)
            for layer in range(1, 4):
                push.layer(layer)
            push.finish()
            push.wait()
            lease.wait()
        finally:
            stop.set()
            worker.join()
        assert not failed, failed

    # The target believes another authority now, so nobody of the former one gets a new link...
    source.stop()
    fresh = daemon("prefill", *certs.flags("ours/prefill", *flags))

    def refused() -> bool:
        try:
            both_ways([fresh, target], rng)
        except kvxfer.PermissionDenied:
            return True
        return False

    assert refused()
    # ...until it follows; a broken set in between is said once and keeps the former one.
    (certs.folder("ours/prefill") / "node.key").write_text("no key")
    until("the broken set to be seen", lambda: refused() and "are not used" in fresh.log(), pause=0.2)
    certs.replace("ours/prefill", "theirs/prefill")

    def believed() -> bool:
        return not refused()

    until("the new certificates to be used", believed, pause=0.2)
    assert fresh.log().count("are not used") == 1


def test_refuses_to_listen(certs: Certificates, tmp_path: Path) -> None:
    done = command("serve", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert 'ConfigInvalid field="listen"' in done.stderr
    assert "tls-cert, tls-key and tls-ca" in done.stderr
    assert "insecure-peers" in done.stderr


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (lambda at: (at / "node.key").write_text("-----BEGIN PRIVATE KEY-----\nhunter2\n"), "tls-key"),
        (lambda at: (at / "node.crt").unlink(), "tls-cert"),
        (lambda at: (at / "ca.crt").write_text(""), "tls-ca"),
        (lambda at: shutil.copy(at.parent / "decode" / "node.crt", at / "node.crt"), "tls-key"),
    ],
)
def test_wrong_files(certs: Certificates, tmp_path: Path, spoil: object, field: str) -> None:
    assert callable(spoil)
    spoil(certs.folder("ours/prefill"))
    done = command(
        "serve", "--node=prefill", "--listen=127.0.0.1:0", "--http=off", f"--state-dir={tmp_path}/state",
        f"--socket={tmp_path}/s", *certs.flags("ours/prefill"),
    )  # fmt: skip
    assert done.returncode == 1
    assert f'ConfigInvalid field=\\"{field}\\"' in done.stderr
    assert str(certs.folder("ours/prefill")) in done.stderr
    assert "hunter2" not in done.stderr


def test_insecure_peers(daemon: Start, rng: random.Random) -> None:
    more = ["--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--insecure-peers"]
    nodes = [daemon(n, *more) for n in ("prefill", "decode")]
    both_ways(nodes, rng)
    assert "neither encrypted nor authenticated" in nodes[0].log()


def test_page_of_security(daemon: Start, tmp_path: Path, rng: random.Random) -> None:
    """The page's commands make certificates that daemons take."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    page = (ROOT / "docs" / "security.md").read_text()
    (script,) = re.findall(r"^```sh\n(openssl .*?)^```$", page, re.M | re.S)
    for name in ("prefill-0", "decode-0"):
        text = script.replace("prefill-0", name)
        if (tmp_path / "ca.crt").exists():
            text = "\n".join(text.split("\n\n")[1:])  # the authority is made once
        subprocess.run(["bash", "-euc", text], cwd=tmp_path, check=True, capture_output=True)
    nodes = [
        daemon(
            n,
            f"--tls-cert={tmp_path}/{n}.crt",
            f"--tls-key={tmp_path}/{n}.key",
            f"--tls-ca={tmp_path}/ca.crt",
        )
        for n in ("prefill-0", "decode-0")
    ]
    both_ways(nodes, rng)
