"""One transfer is one trace: whole, exported by the standard, and without secrets."""

from __future__ import annotations

import base64
import json
import random
import re
import signal
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import kvxfer
import pytest

from conftest import Start
from daemon import PATIENCE, Daemon, attributes, command, until
from otlp import documented
from transfers import LAYOUT, allocate, move

SOURCE = {"push": 1, "plan": 1, "bind": 1, "batch": LAYOUT.layers, "fin": 1, "kvxfer.write": 1}
TARGET = {"lease": 1, "bind": 1, "place": LAYOUT.layers, "commit": 1, "fence": 1, "kvxfer.lease": 1}
"""The spans that the two daemons export for one transfer whose layers are one provider batch each."""


def transfer(
    source: kvxfer.Cache, target: kvxfer.Cache, blocks: int, traceparent: str | None = None
) -> tuple[str, str]:
    """Move blocks; the trace's id and the ticket."""
    with target.lease(range(blocks), ttl=PATIENCE, traceparent=traceparent) as lease:
        push = source.write(range(blocks), to=lease.ticket, timeout=PATIENCE)
        assert push.wait().trace_id == lease.traceparent.split("-")[1]
        lease.wait()
        return push.trace_id, lease.ticket


def of_trace(d: Daemon, trace_id: str) -> list[dict[str, Any]]:
    return [s for s in d.spans() if s["traceId"] == trace_id]


def test_transfer_is_one_trace(pair: tuple[Daemon, Daemon]) -> None:
    prefill, decode = pair
    with prefill.connect(process="prefill") as near, decode.connect(process="decode") as far:
        source, target = allocate(near, "source", 64), allocate(far, "target", 64)
        counts = {}
        for blocks in (1, 48):
            trace_id, _ = transfer(source, target, blocks)
            for d, want in ((prefill, SOURCE), (decode, TARGET)):
                until(
                    f"{sum(want.values())} spans of {d.name}",
                    lambda d=d, want=want: len(of_trace(d, trace_id)) >= sum(want.values()),  # type: ignore[misc] # noqa: B023
                )
                counts[blocks, d.name] = Counter(s["name"] for s in of_trace(d, trace_id))
                assert counts[blocks, d.name] == want
    # Not a span more for 48 blocks than for one.
    assert counts[1, "prefill"] == counts[48, "prefill"]
    assert counts[1, "decode"] == counts[48, "decode"]

    spans = of_trace(prefill, trace_id) + of_trace(decode, trace_id)
    by_id = {s["spanId"]: s for s in spans}
    assert len(by_id) == len(spans)
    names, keys = documented()
    for s in spans:
        assert s["name"] in names
        assert set(attributes(s)) <= set(keys)
        assert int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"])

    def chain(name: str, *above: str) -> None:
        for s in spans:
            if s["name"] == name:
                up = []
                while s.get("parentSpanId"):
                    s = by_id[s["parentSpanId"]]
                    up.append(s["name"])
                assert tuple(up) in (above, *others.get(name, ())), f"{name} is below {up}"

    others = {"bind": [("push", "kvxfer.write", "kvxfer.lease")]}  # the source's; the target's is below it
    chain("kvxfer.lease")
    chain("lease", "kvxfer.lease")
    chain("kvxfer.write", "kvxfer.lease")
    chain("push", "kvxfer.write", "kvxfer.lease")
    for name in ("plan", "bind", "batch", "fin"):
        chain(name, "push", "kvxfer.write", "kvxfer.lease")
    for name in ("place", "commit", "fence"):
        chain(name, "push", "kvxfer.write", "kvxfer.lease")

    one = {s["name"]: attributes(s) for s in spans if s["name"] in ("push", "kvxfer.write", "kvxfer.lease")}
    assert len({a["kvxfer.transfer.id"] for a in one.values()}) == 1
    assert all(int(a["kvxfer.bytes"]) == 48 * LAYOUT.block_bytes for a in one.values())
    services = {(s["name"], s["resource"]["service.name"]) for s in spans if s["name"].startswith("kvxfer.")}
    assert services == {("kvxfer.write", "prefill"), ("kvxfer.lease", "decode")}


def test_no_secret_is_recorded(daemon: Start, rng: random.Random) -> None:
    decode = daemon("decode", "--nats-listen", "127.0.0.1:0", "--log-level", "debug")
    prefill = daemon("prefill", "--nats", decode.info["nats_url"], "--log-level", "debug")
    tickets, payload = [], rng.randbytes(32)
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        source.memory[:] = payload * (len(source.memory) // len(payload))
        tickets.append(transfer(source, target, 8)[1])
        with target.lease([9, 10]) as lease:  # what fails is told at more length
            tickets.append(lease.ticket)
            mismatched = near.allocate_cache("other", model="model@2", layout=LAYOUT, num_blocks=4)
            with pytest.raises(kvxfer.LayoutMismatch):
                mismatched.write([0, 1], to=lease.ticket).wait()
        with pytest.raises(kvxfer.TransferError):
            source.write([0, 1], to=tickets[1]).wait()
        with pytest.raises(kvxfer.TicketInvalid):
            source.write([0, 1], to=tickets[1][:-9]).wait()
    prefill.stop()
    decode.stop()
    written = [path.read_bytes() for d in (prefill, decode) for path in (d.trace_file, d.log_path)]
    for ticket in tickets:
        body = ticket.split(".")[1]
        grants = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["grants"]
        secret = base64.b64decode(grants[0]["secret"])
        assert len(secret) == 16
        forms = [
            ticket,
            body,
            body[:60],
            body[-60:],
            secret.hex(),
            base64.b64encode(secret).decode().rstrip("="),
        ]
        forms.append(base64.urlsafe_b64encode(secret).decode().rstrip("="))
        needles = [form.encode() for form in forms] + [secret, payload[:12]]
        for where in written:
            for needle in needles:
                assert needle not in where
                assert needle.upper() not in where
    assert any(b"LayoutMismatch" in where for where in written)


def test_unsampled_trace_exports_nothing(pair: tuple[Daemon, Daemon]) -> None:
    prefill, decode = pair
    quiet = "0af7651916cd43dd8448eb211c80319c"
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        trace_id, _ = transfer(source, target, 4, f"00-{quiet}-b7ad6b7169203331-00")
        assert trace_id == quiet
        loud, _ = transfer(source, target, 4, "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-01")
    prefill.stop()  # with everything that was to be exported
    decode.stop()
    for d, want in ((prefill, SOURCE), (decode, TARGET)):
        assert of_trace(d, quiet) == []
        assert quiet not in d.trace_file.read_text()
        assert Counter(s["name"] for s in of_trace(d, loud)) == want


def test_collector_that_is_away_costs_no_transfer(daemon: Start, rng: random.Random) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    d = daemon("n0", env=env)
    with d.connect() as client:
        move(allocate(client, "source"), allocate(client, "target"), rng)
        until("the warning", lambda: "trace export failed" in d.log())
        move(allocate(client, "source2"), allocate(client, "target2"), rng)


def test_trace_command(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    prefill, decode = pair
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        first, _ = transfer(source, target, 4)
        second, _ = transfer(source, target, 4)
    prefill.stop()
    decode.stop()
    files = [arg for d in pair for arg in ("--file", str(d.trace_file))]

    def trace(*args: str, code: int = 0) -> str:
        done = command("trace", *args)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    want = sum(SOURCE.values()) + sum(TARGET.values())
    listed = trace("list", *files)
    assert first in listed
    assert second in listed
    shown = {t["trace_id"]: t for t in json.loads(trace("list", "--json", *files))}
    assert shown[first]["spans"] == shown[second]["spans"] == want

    picture = tmp_path / "trace.svg"
    text = trace("show", second[:12], *files, "--svg", str(picture))
    for name in (*SOURCE, *TARGET):
        assert re.search(rf"\b{re.escape(name)}\b", text), name
    assert trace("show", "latest", *files) == text
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg")
    drawn = "".join(root.itertext())
    assert all(name in drawn for name in (*SOURCE, *TARGET))
    assert "no trace" in trace("show", "ffffffffffff", *files, code=1)


def test_trace_from_the_daemons(daemon: Start, tmp_path: Path) -> None:
    """Without files: the daemon that is asked gets the other nodes' spans, by a trace's or transfer's id."""
    decode = daemon("decode", "--nats-listen", "127.0.0.1:0")
    prefill = daemon("prefill", "--nats", decode.info["nats_url"])
    idle = daemon("idle", "--nats", decode.info["nats_url"], "--trace-keep", "64")
    deaf = daemon("deaf", "--nats", decode.info["nats_url"], "--trace-keep", "0")
    with prefill.connect(process="prefill") as near, decode.connect(process="decode") as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        transfer(source, target, 4)
        with target.lease([0], ttl=PATIENCE) as lease:
            push = source.write([0], to=lease.ticket, timeout=PATIENCE)
            push.wait()
            lease.wait()
        want = sum(SOURCE.values()) + sum(TARGET.values())

        def ask(d: Daemon, *args: str, code: int = 0) -> str:
            done = command("trace", *args, "--socket", str(d.socket))
            assert done.returncode == code, done.stderr
            return done.stdout if code == 0 else done.stderr

        def spans(d: Daemon, *args: str) -> Counter[str]:
            shown = json.loads(ask(d, "show", *args, "--json"))
            assert shown["trace_id"] == push.trace_id
            return Counter(row["span"]["name"] for group in shown["groups"] for row in group["rows"])

        # Clients hand their spans over a moment after the call.
        until("the whole trace", lambda: spans(prefill, push.trace_id).total() >= want)
        for d in (prefill, decode, idle, deaf):
            for name in (push.trace_id, push.transfer_id, push.transfer_id[:12]):
                assert spans(d, name) == Counter(SOURCE) + Counter(TARGET), f"{name} from {d.name}"
        assert spans(prefill, "latest") == Counter(SOURCE) + Counter(TARGET)
        assert spans(decode, push.trace_id, "--local") == Counter(TARGET)
        picture = tmp_path / "trace.svg"
        text = ask(prefill, "show", push.transfer_id, "--svg", str(picture))
        assert all(re.search(rf"\b{re.escape(name)}\b", text) for name in (*SOURCE, *TARGET))
        assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
        assert len(json.loads(ask(decode, "list", "--json"))) == 2
        assert "NotFound" in ask(decode, "show", "f" * 32, code=1)
        assert "--trace-keep" in ask(deaf, "show", "latest", code=1)
        prefill.freeze()  # it cannot answer: the rest is shown, and that it is not all
        done = command("trace", "show", push.trace_id, "--socket", str(decode.socket), "--timeout", "500ms")
        prefill.signal(signal.SIGCONT)
        assert done.returncode == 0, done.stderr
        assert "did not answer" in done.stderr
        assert "prefill" in done.stderr
        assert "commit" in done.stdout
