"""``kvxfer serve`` as an operator meets it: settings, health, shutting down, doing nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import kvxfer
import pytest

from conftest import Start
from daemon import PATIENCE, PLAIN_BINARY, Daemon, command, free_port, until
from transfers import allocate, begin

WRONG = [
    ("node", "-x", "1 to 64 of [A-Za-z0-9_.-]"),
    ("listen", "10.0.0.1:99999", "a port of 0 to 65535"),
    ("advertise", "0.0.0.0:1", "an IP that peers can dial"),
    ("http", "fe80::1", "IPv6 with a port as [IP]:PORT"),
    ("nats", "http://user:hunter2@registry:4222", "nats://HOST:PORT"),
    ("lanes", "0", "1 to 64"),
    ("max-clients", "many", "1 to 65536"),
    ("allow-uid", "root", "user numbers of 0 to"),
    ("heartbeat", "1ms", "50ms to 10m"),
    ("drain-timeout", "-1s", "0s to 1h"),
    ("log-level", "loud", "debug, info, warn, error"),
    ("providers", "pigeon", "shm, verbs, tcp"),
    ("socket", "/" + "x" * 200, "a path of at most 107 bytes"),
]


@pytest.mark.parametrize("where", ["flag", "env", "file"])
def test_wrong_settings(where: str, tmp_path: Path) -> None:
    # All of them at once: the operator hears of all of them at once.
    wrong = {name: (value, allowed) for name, value, allowed in WRONG}
    file = tmp_path / "kvxfer.json"
    args, env = [], {}
    for name, (value, _) in wrong.items():
        if where == "flag":
            args.append(f"--{name}={value}")
        elif where == "env":
            env["KVXFER_" + name.upper().replace("-", "_")] = value
    if where == "file":
        settings: dict[str, object] = {name: value for name, (value, _) in wrong.items()}
        settings["lanes"] = 0
        settings.pop("max-clients")  # "many" is no number of the file: another complaint, tested below
        wrong.pop("max-clients")
        file.write_text(json.dumps(settings, indent=1))
        args = ["--config", str(file)]
    done = command("serve", *args, env=env)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    for name, (_, allowed) in wrong.items():
        source = {
            "flag": f"--{name}",
            "env": "KVXFER_" + name.upper().replace("-", "_"),
            "file": f"{file} line",
        }[where]
        about = [x for x in lines if f'ConfigInvalid field="{name}"' in x]
        assert len(about) == 1, (name, done.stderr)
        assert source in about[0]
        assert allowed in about[0]
    assert "hunter2" not in done.stderr
    assert "--help" in lines[-1]


@pytest.mark.parametrize(
    ("args", "file", "complaint"),
    [
        (["--colour", "red"], None, "--colour is not a flag"),
        (["extra"], None, "is not a flag"),
        (["--lanes"], None, "lacks its value"),
        (["--config", "/nonexistent/kvxfer.json"], None, "cannot be read"),
        ([], '{"lanes": 2, "lanes": 3}', "second time"),
        ([], '{"max-clients": "many"}', "it must be a number"),
        ([], '{"colour": "red"}', "is not a key"),
        ([], '{"lanes": 2', "ends too early"),
        (["--listen", "0.0.0.0:0"], None, "which no peer can dial"),
        (["--nats", "nats://a:1", "--nats-listen", "127.0.0.1:0"], None, "not allowed together"),
        (["--listen", "127.0.0.1:7500", "--http", "127.0.0.1:7500"], None, "takes that port"),
    ],
)
def test_wrong_usage(args: list[str], file: str | None, complaint: str, tmp_path: Path) -> None:
    if file is not None:
        path = tmp_path / "kvxfer.json"
        path.write_text(file)
        args = [*args, "--config", str(path)]
    done = command("serve", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert "ConfigInvalid" in done.stderr
    assert "allowed" in done.stderr


def test_sources_in_order(daemon: Start, tmp_path: Path) -> None:
    file = tmp_path / "kvxfer.json"
    file.write_text(json.dumps({"node": "of-the-file", "max-clients": 7, "log-format": "json"}))
    env = {"KVXFER_CONFIG": str(file), "KVXFER_NODE": "of-the-env", "KVXFER_MAX_CLIENTS": "1"}
    d = daemon("of-the-flag", env=env)  # started with --node
    assert d.info["node"] == "of-the-flag"
    until("the log's last word of the start", lambda: "serving" in d.log())  # it follows the file by a moment
    assert [json.loads(line) for line in d.log().splitlines()][-1]["node"] == "of-the-flag"
    with d.connect(), pytest.raises(kvxfer.ResourceExhausted, match="allowed 1"):
        d.connect()


def test_commands() -> None:
    for args in ([], ["serv"], ["version", "extra"], ["version", "--colour"], ["trace"]):
        done = command(*args)
        assert (done.returncode, done.stdout) == (2, ""), args
        assert done.stderr, args
    assert 'no command "serv"' in command("serv").stderr
    for args in (
        ["--help"],
        ["help"],
        ["serve", "--help"],
        ["serve", "--lanes", "0", "-h"],
        ["trace", "--help"],
    ):
        done = command(*args)
        assert (done.returncode, done.stderr) == (0, ""), args
        assert "Usage" in done.stdout, args
    settings = command("serve", "--help").stdout
    for name, _, _ in WRONG:
        assert re.search(rf"^  --{name} .*KVXFER_{name.upper().replace('-', '_')}$", settings, re.M), name
    assert command("version", "--help").returncode == 0

    version = json.loads(command("version", "--json").stdout)
    want = (Path(__file__).parents[2] / "VERSION").read_text().strip()
    assert version["version"] == want
    assert (version["min_protocol"], version["max_protocol"]) == (1, 1)
    assert command("version").stdout.startswith(f"kvxfer {want} (")


def test_health(daemon: Start) -> None:
    d = daemon("n0")
    assert d.get("/healthz") == (200, "ok\n")
    assert d.get("/readyz") == (200, "ok\n")
    assert d.get("/metrics")[0] == 200
    with d.connect() as client:
        allocate(client, "cache").lease([0, 1], ttl=PATIENCE)
        code, body = d.get("/status")
        shown = json.loads(body)
        assert code == 200
        status = client.status()
        for key in ("node", "epoch", "version", "peer_addr", "http_addr", "draining", "clients", "leases"):
            assert shown[key] == getattr(status, key), key
        assert (status.clients, status.leases, status.transfers, status.draining) == (1, 1, 0, False)
        assert "secret" not in body
    d.stop()
    off = daemon("n1", "--http", "off")
    assert off.info["http_addr"] == ""


def ends_of(what: kvxfer.Push | kvxfer.Lease) -> kvxfer.KvxferError:
    """The typed error that it ended with."""
    with pytest.raises(kvxfer.KvxferError) as e:
        what.wait(PATIENCE)
    assert not isinstance(e.value, kvxfer.DeadlineExceeded), "nobody said how it ended"
    return e.value


def test_sigterm_lets_transfers_end(pair: tuple[Daemon, Daemon]) -> None:
    prefill, decode = pair
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        push, lease = begin(source, target)
        decode.signal(signal.SIGTERM)
        until("decode to drain", lambda: far.status().draining)
        with pytest.raises(kvxfer.Draining):
            target.lease([5])
        assert decode.get("/readyz")[0] == 503
        assert decode.get("/healthz")[0] == 200
        for layer in range(1, target.layout.layers):  # what runs may go on
            push.layer(layer)
        push.finish(notification=b"in time")
        assert push.wait().bytes == target.layout.block_bytes
        assert lease.wait().notification == b"in time"
        assert decode.wait_end() == 0


def test_sigterm_ends_what_takes_too_long(daemon: Start) -> None:
    prefill, decode = daemon("prefill"), daemon("decode", "--drain-timeout", "500ms")
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        push, lease = begin(source, target)
        back, back_lease = begin(target, source)  # decode is a source, too
        decode.signal(signal.SIGTERM)
        assert decode.wait_end() == 0
        for end in (push, lease, back, back_lease):
            error = ends_of(end)
            assert isinstance(error, (kvxfer.Draining, kvxfer.PeerLost)), error
        assert lease.released
        assert back.released
        until("the source's blocks to be released", lambda: push.released)
        assert source.block_states().leased == 0


def test_second_sigterm_hurries(daemon: Start) -> None:
    prefill, decode = daemon("prefill"), daemon("decode", "--drain-timeout", "1h")
    with prefill.connect() as near, decode.connect() as far:
        push, lease = begin(allocate(near, "source"), allocate(far, "target"))
        decode.signal(signal.SIGTERM)
        until("decode to drain", lambda: json.loads(decode.get("/status")[1])["draining"])
        assert not push.poll()
        decode.signal(signal.SIGTERM)
        assert decode.wait_end() == 0
        assert isinstance(ends_of(lease), kvxfer.Draining)
        assert isinstance(ends_of(push), (kvxfer.Draining, kvxfer.PeerLost))


def test_sigterm_at_the_start(daemon: Start) -> None:
    d = daemon("n0", "--nats", f"nats://127.0.0.1:{free_port()}", wait=False)  # waits for its registry
    until("the start to have begun", lambda: "tracing is on" in d.log())
    d.signal(signal.SIGTERM)
    assert d.wait_end() == 1
    assert "the node did not start" in d.log()
    assert not d.socket.exists()
    assert not (d.state / "node.json").exists()


def test_second_daemon_waits_for_the_state_directory(daemon: Start) -> None:
    first = daemon("n0")
    with first.connect() as client:
        begin(allocate(client, "source"), allocate(client, "target"))
        second = daemon("n0", wait=False)  # the same name has the same directory here, and the same log
        until("the second to run", lambda: len(list(Path(f"/proc/{second.pid}/task").iterdir())) > 3)
        assert client.status().leases == 1
    first.stop()
    second.wait_ready()
    with second.connect() as client:
        assert client.status().leases == 0
    # The second one may serve a moment before it says so.
    wanted = ["serving", "ended", "serving"]
    until("both to say so", lambda: re.findall(r"msg=(serving|ended)", second.log()) == wanted)


def cpu_ticks(pid: int) -> int:
    """Processor time that a process has used, user and system, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_idle(daemon: Start) -> None:
    # This measures processor time, not how long something takes; the race detector would be measured with it.
    decode = daemon("decode", "--nats-listen", "127.0.0.1:0", binary=PLAIN_BINARY)
    prefill = daemon("prefill", "--nats", decode.info["nats_url"], binary=PLAIN_BINARY)
    with prefill.connect() as near, decode.connect() as far:
        begin(allocate(near, "source"), allocate(far, "target"))  # a link with a transfer that rests
        begin(allocate(far, "source2"), allocate(near, "target2"))
        before = {d.name: cpu_ticks(d.pid) for d in (decode, prefill)}
        began = time.monotonic()
        time.sleep(5)  # the measured time itself
        seconds = time.monotonic() - began
        for d in (decode, prefill):
            used = (cpu_ticks(d.pid) - before[d.name]) / os.sysconf("SC_CLK_TCK")
            print(f"{d.name}: {used:.2f} s of processor time in {seconds:.1f} s")
            assert used < 0.01 * seconds
