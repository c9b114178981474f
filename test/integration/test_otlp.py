"""Traces at a real OTLP receiver: whole, as documented, and only what was sampled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvxfer
import pytest

from conftest import Start
from daemon import PATIENCE, Daemon, attributes, command, until
from otlp import TYPES, Sink, documented
from test_trace import SOURCE, TARGET, transfer
from transfers import allocate

WHOLE = Counter(SOURCE) + Counter(TARGET)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    """A receiver of its own."""
    server = Sink(tmp_path).start()
    yield server
    server.stop()


def start(daemon: Start, prefill: dict[str, str], decode: dict[str, str]) -> tuple[Daemon, Daemon]:
    """Two nodes that write no trace files, so that the environment alone says what is traced."""
    quiet = ("--trace-file", "")
    far = daemon("decode", "--nats-listen", "127.0.0.1:0", *quiet, env=decode)
    return daemon("prefill", "--nats", far.info["nats_url"], *quiet, env=prefill), far


def of_trace(sink: Sink, trace_id: str) -> list[dict[str, Any]]:
    return [s for s in sink.spans() if s["traceId"] == trace_id]


def test_whole_and_as_documented(daemon: Start, sink: Sink) -> None:
    """Every kind of transfer, one node over gRPC and one over HTTP: the spans and keys that arrive are those
    of docs/tracing.md, all of them, and each trace hangs together."""
    extra = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test-of-kvxfer"}
    prefill, decode = start(daemon, sink.env("grpc", **extra), sink.env("http/protobuf", **extra))
    with prefill.connect(process="prefill") as near, decode.connect(process="decode") as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        pushed, ticket = transfer(source, target, 4)
        with target.lease([0, 1], mode="read", ttl=PATIENCE) as offer:
            pulled = source.read([8, 9], source=offer.ticket, timeout=PATIENCE).wait().trace_id
        regions = near.allocate_region("r", 4096), far.allocate_region("r", 4096)
        with regions[1].advertise("write", ttl=PATIENCE) as raw:
            regions[0].writev([(0, 0, 64)], to=raw.ticket, timeout=PATIENCE).wait()
        with target.lease([9]) as lease:
            other = near.allocate_cache("other", model="model@2", layout=source.layout, num_blocks=4)
            with pytest.raises(kvxfer.LayoutMismatch):
                other.write([0], to=lease.ticket, timeout=PATIENCE).wait()
    until("the whole push", lambda: Counter(s["name"] for s in of_trace(sink, pushed)) == WHOLE)
    until("the pull", lambda: {"pull", "kvxfer.read"} <= {s["name"] for s in of_trace(sink, pulled)})
    prefill.stop()
    decode.stop()

    names, keys = documented()
    spans = sink.spans()
    assert {s["name"] for s in spans} == names
    seen = set()
    for s in spans:
        about = [s["scope"], s, *s.get("events", [])]
        own = [a for holder in about for a in holder.get("attributes", [])]
        seen |= {a["key"] for a in own}
        for a in own:
            assert TYPES[keys[a["key"]]] in a["value"], f"{a} of {s['name']}"
        resource = s["resource"]
        assert resource["kvxfer.node"] in ("prefill", "decode")
        assert attributes(s["scope"])["kvxfer.tenant"] == "default"
        if not s["name"].startswith("kvxfer."):
            assert resource["deployment.environment"] == "test-of-kvxfer"
    assert seen == set(keys) - {"kvxfer.node"}, "kvxfer.node is the resource's"
    for trace_id in (pushed, pulled):
        ids = {s["spanId"] for s in of_trace(sink, trace_id)}
        roots = [s["name"] for s in of_trace(sink, trace_id) if s.get("parentSpanId", "") not in ids]
        assert roots == ["kvxfer.lease"], "one root, and no span's parent is missing"
    assert ticket not in sink.text()


def test_an_unsampled_call_is_nowhere(daemon: Start, sink: Sink) -> None:
    """A caller's word that nothing is sampled holds in the client and in both daemons."""
    prefill, decode = start(daemon, sink.env("grpc"), sink.env())
    quiet, loud = "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319d"
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        transfer(source, target, 4, f"00-{quiet}-b7ad6b7169203331-00")
        transfer(source, target, 4, f"00-{loud}-b7ad6b7169203331-01")
    prefill.stop()  # with everything that was to be exported
    decode.stop()
    assert Counter(s["name"] for s in of_trace(sink, loud)) == WHOLE
    assert quiet not in sink.text()


def test_the_sampler(daemon: Start, sink: Sink, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the traces: each is whole or nowhere, and a caller's word goes first."""
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    prefill, decode = start(daemon, sink.env("grpc", **ratio), sink.env(**ratio))
    for name, value in ratio.items():  # of the clients: traces begin there
        monkeypatch.setenv(name, value)
    sampled: dict[str, bool] = {}
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        while len(set(sampled.values())) < 2 or len(sampled) < 8:
            with target.lease([0], ttl=PATIENCE) as lease:
                push = source.write([0], to=lease.ticket, timeout=PATIENCE)
                push.wait()
                lease.wait()
                sampled[push.trace_id] = push.traceparent.endswith("-01")
                assert push.traceparent[-2:] == lease.traceparent[-2:]
        begun = (
            f"00-{rng.randrange(1, 1 << 63):016x}{'f' * 16}-b7ad6b7169203331-01"  # beyond every share but 1
        )
        forced, _ = transfer(source, target, 1, begun)
        sampled[forced] = True
    prefill.stop()
    decode.stop()
    found = Counter(s["traceId"] for s in sink.spans())
    assert found == {t: WHOLE.total() for t, yes in sampled.items() if yes}


def test_a_sampler_that_is_none(daemon: Start, sink: Sink, tmp_path: Path) -> None:
    """A sampler that nobody knows ends the start by name; always_off keeps nothing, of clients neither."""
    done = command(
        "serve", "--state-dir", str(tmp_path / "s"), "--socket", str(tmp_path / "k.sock"), "--http", "off",
        "--listen", "127.0.0.1:0", env=sink.env(OTEL_TRACES_SAMPLER="sometimes"),
    )  # fmt: skip
    assert done.returncode != 0
    assert "OTEL_TRACES_SAMPLER" in done.stderr
    off = sink.env(OTEL_TRACES_SAMPLER="always_off")
    prefill, decode = start(daemon, off, off)
    with prefill.connect() as near, decode.connect() as far:
        transfer(allocate(near, "source"), allocate(far, "target"), 1, f"00-{'1' * 32}-{'2' * 16}-01")
    prefill.stop()
    decode.stop()
    assert sink.text() == ""
