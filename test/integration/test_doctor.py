"""kvxfer doctor and support, with real daemons: what they find, and what they must not tell."""

from __future__ import annotations

import base64
import json
import random
import secrets
import tarfile
from pathlib import Path
from typing import Any

import kvxfer
import pytest

from certificates import Certificates
from conftest import Attach, Start
from contents import SMALL
from daemon import PATIENCE, ROOT, Daemon, NatsServer, command, until
from hosts import INTERFACE, Pair
from hosts import IPV4 as ADDRESSES
from test_hosts import needs_namespaces

MIB = 1 << 20


def settings(d: Daemon, **more: str) -> dict[str, str]:
    """The environment in which the commands see what a daemon was started with."""
    return {
        "KVXFER_SOCKET": str(d.socket),
        "KVXFER_NODE": d.name,
        "KVXFER_STATE_DIR": str(d.state),
        "KVXFER_LISTEN": d.info["peer_addr"],
        "KVXFER_HTTP": d.info["http_addr"],
        **more,
    }


def peer(d: Daemon, node: str, *args: str) -> tuple[int, dict[str, Any]]:
    """Run ``kvxfer doctor --peer``; its exit code and its report."""
    done = command("doctor", "--peer", node, "--socket", str(d.socket), "--json", *args)
    assert not done.stderr, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def acquainted(*daemons: Daemon) -> None:
    """Wait until the daemons know one another."""
    for d in daemons:
        with d.connect() as client:
            until(f"{d.name} to know all", lambda: len(client.status().nodes) == len(daemons))


def good(steps: list[dict[str, Any]], near: str, far: str) -> None:
    """All four steps moved all bytes, each begun by whom it should be."""
    assert [(s["from"], s["to"], s["begun_by"], s["op"]) for s in steps] == [
        (near, far, near, "write"),
        (far, near, near, "read"),
        (far, near, far, "write"),
        (near, far, far, "read"),
    ]
    for s in steps:
        assert (s["verdict"], s["bytes"], "error" in s) == ("ok", MIB, False), s
        assert s["ns"] > 0


def test_host(daemon: Start) -> None:
    """With a running daemon its ports and its registry are its own; a wrong setting is named and fails."""
    d = daemon("n0")
    done = command("doctor", "--json", env=settings(d))
    report = json.loads(done.stdout)
    checks = {c["id"]: c for c in report["checks"]}
    assert done.returncode == 0, report
    page = (ROOT / "docs" / "doctor.md").read_text()
    at = [page.index(f"| `{i}` |") for i in checks]
    assert at == sorted(at), "docs/doctor.md lists them in this order"
    for i in ("daemon", "listen", "http", "socket", "state-dir", "provider-shm", "provider-tcp"):
        assert checks[i]["verdict"] == "ok", checks[i]
    assert "running daemon's" in checks["listen"]["finding"]

    done = command("doctor", env={**settings(d), "KVXFER_LANES": "999", "KVXFER_NODE": "no/slash"})
    assert done.returncode == 1
    assert "lanes" in done.stdout
    assert "no/slash" in done.stdout
    assert command("doctor", "--provider", "tcp").returncode == 2


def test_peer_on_one_host(pair: tuple[Daemon, Daemon], attach: Attach, rng: random.Random) -> None:
    """Both providers carry a megabyte each way; transfers may name theirs; an unknown peer is named."""
    near, far = pair
    acquainted(near, far)
    code, report = peer(near, "decode")
    assert (code, report["verdict"], report["addr"]) == (0, "ok", far.info["peer_addr"])
    assert [p["provider"] for p in report["providers"] if p["provider"] != "verbs"] == ["shm", "tcp"]
    for p in report["providers"]:
        good(p["steps"], "prefill", "decode")
    text = command("doctor", "--peer", "decode", "--socket", str(near.socket), "--provider", "tcp")
    assert text.returncode == 0
    assert text.stdout.count("1.0 MiB in") == 4, text.stdout

    lost = command("doctor", "--peer", "nobody", "--socket", str(near.socket), "--json")
    error = json.loads(lost.stderr)["error"]
    assert (lost.returncode, error["name"], error["peer"]) == (1, "NotFound", "nobody")
    assert "decode, prefill" in error["detail"]

    source = attach(near).allocate_region("source", 4096)
    target = attach(far).allocate_region("target", 4096)
    for name in ("shm", "tcp"):
        source.memory[:] = rng.randbytes(4096)
        with target.advertise("write", ttl=PATIENCE) as offer:
            push = source.writev([(0, 0, 4096)], to=offer.ticket, timeout=PATIENCE, provider=name)
            assert push.wait().provider == name
            assert bytes(target.memory) == bytes(source.memory)
            with pytest.raises(kvxfer.NotSupported) as e:
                source.writev([(0, 0, 4096)], to=offer.ticket, timeout=PATIENCE, provider="pigeon")
            assert e.value.field == "provider"


def test_one_way_and_a_missing_provider(daemon: Start, attach: Attach) -> None:
    """Connections get through from one node to the other and not back; and the far one has no shm."""
    near = daemon("near", "--nats-listen", "127.0.0.1:0", "--advertise", "127.0.0.1:1")
    far = daemon("far", "--providers", "tcp", "--nats", near.info["nats_url"])
    acquainted(near, far)
    code, report = peer(near, "far")
    assert (code, report["verdict"]) == (1, "fail")
    shm, tcp = report["providers"]
    assert (shm["here"], shm["there"], shm["verdict"], "steps" in shm) == (True, False, "warn", False)
    assert "far has no shm" in shm["remedy"]
    assert [s["verdict"] for s in tcp["steps"]] == ["ok", "ok", "fail", "fail"]
    for s in tcp["steps"][2:]:
        assert s["error"]["name"] == "PeerUnreachable"
        assert "from far to near" in s["remedy"]

    code, report = peer(far, "near")
    assert code == 1
    by_name = {p["provider"]: p for p in report["providers"]}
    assert (by_name["shm"]["here"], by_name["shm"]["there"]) == (False, True)
    steps = by_name["tcp"]["steps"]
    assert {s["error"]["name"] for s in steps} == {"PeerUnreachable"}
    assert ["not tried" in s["error"]["detail"] for s in steps] == [False, False, True, True]

    # What the far node lacks does not get another provider's help.
    source, target = attach(near).allocate_region("s", 64), attach(far).allocate_region("t", 64)
    with target.advertise("write", ttl=PATIENCE) as offer:
        assert source.writev([(0, 0, 64)], to=offer.ticket, timeout=PATIENCE).wait().provider == "tcp"
        with pytest.raises(kvxfer.NotSupported) as e:
            source.writev([(0, 0, 64)], to=offer.ticket, timeout=PATIENCE, provider="shm").wait()
    assert e.value.field == "provider"
    assert "shm" in str(e.value)


def test_peer_on_two_hosts(daemon: Start) -> None:
    """Between two hosts, both ways, over the addresses that they advertise."""
    needs_namespaces()
    with Pair(ADDRESSES) as hosts:
        a, b = hosts.hosts
        flags = ("--providers", "tcp", "--insecure-peers", "--listen", f"{INTERFACE}:0")
        far = daemon("b", *flags, "--nats-listen", f"{ADDRESSES[1]}:0", prefix=b.prefix)
        near = daemon("a", *flags, "--nats", far.info["nats_url"], prefix=a.prefix)
        acquainted(near, far)
        code, report = peer(near, "b")
        assert (code, report["addr"].split(":")[0]) == (0, ADDRESSES[1])
        good(report["providers"][0]["steps"], "a", "b")

        # Nobody has this address, so what b sends there is lost without a word, as a firewall drops it.
        nowhere = ADDRESSES[0].rsplit(".", 1)[0] + ".99:7420"
        dark = daemon("c", *flags, "--advertise", nowhere, "--nats", far.info["nats_url"], prefix=a.prefix)
        acquainted(near, far, dark)
        code, report = peer(dark, "b", "--timeout", "4s")
        steps = report["providers"][0]["steps"]
        assert (code, [s["verdict"] for s in steps]) == (1, ["ok", "ok", "fail", "fail"])
        assert {s["error"]["name"] for s in steps[2:]} == {"PeerUnreachable"}
        for d in (dark, near, far):
            d.stop()


def test_support_holds_no_secret(nats: NatsServer, daemon: Start, attach: Attach, tmp_path: Path) -> None:
    """Secrets are planted wherever the daemon has some; none is in the archive, in no spelling."""
    certificates = Certificates(tmp_path / "certificates", "ours/n0=n0")
    password, user, key = secrets.token_hex(12), secrets.token_hex(8), secrets.token_bytes(32)
    url = nats.url.replace("nats://", f"nats://{user}:{password}@")
    flags = certificates.flags("ours/n0")
    d = daemon("n0", *flags, "--log-level", "debug", env={"KVXFER_NATS": url, "SECRET": password})
    client = attach(d)
    cache = client.allocate_cache(
        "c", model="m", layout=SMALL, num_blocks=4, instance="engine", instance_key=key
    )
    tickets = [cache.lease([0, 1], ttl=PATIENCE).ticket]
    tickets.append(client.lease(instance="engine", instance_key=key, blocks=[2], ttl=PATIENCE).ticket)
    for t in tickets:  # what is refused is logged, too
        with pytest.raises(kvxfer.KvxferError):
            cache.write([3], to=t + "x", timeout=PATIENCE).wait()

    out = tmp_path / "bundle.tar.gz"
    args = ["support", "--out", str(out), "--json", "--socket", str(d.socket)]
    done = command(*args, env={**settings(d), "KVXFER_NATS": url, "SECRET": password})
    assert done.returncode == 0, done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as tar:
        parts = {m.name.removeprefix("kvxfer-support/"): tar.extractfile(m) for m in tar.getmembers()}
        texts = {name: f.read() for name, f in parts.items() if f is not None}
    written = json.loads(done.stdout)
    assert set(written["parts"]) <= set(texts)
    assert {"version.json", "doctor.json", "status.json", "configuration.json", "log.txt"} <= set(texts)
    rows = {name: json.loads(texts[f"{name}.json"]) for name in ("nodes", "caches", "leases", "transfers")}
    assert all(table["all_tenants"] for table in rows.values())
    assert [len(table["rows"]) for table in rows.values()] == [1, 1, len(rows["leases"]["rows"]), 0]
    assert {lease["waiting"]["for"] for lease in rows["leases"]["rows"]} >= {"source"}
    assert json.loads(texts["configuration.json"])["nats"] == "external"
    assert b"client attached" in texts["log.txt"]
    assert b"goroutine profile" in texts["goroutines.txt"]

    planted: list[bytes] = [password.encode(), user.encode(), key, key.hex().encode(), base64.b64encode(key)]
    for t in tickets:
        body = t.split(".", 1)[1]
        planted += [body[:40].encode(), body[-40:].encode()]
        grants = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["grants"]
        for g in grants:
            planted += [g["secret"].encode(), base64.b64decode(g["secret"]).hex().encode()]
    pem = (certificates.folder("ours/n0") / "node.key").read_text().splitlines()
    planted += [line.encode() for line in pem if len(line) > 20 and "KEY" not in line]
    for name, text in texts.items():
        for secret in planted:
            assert secret not in text, f"{name} holds a secret"

    again = command(*args)
    assert (again.returncode, "AlreadyExists" in again.stderr) == (1, True), "nothing is overwritten"
