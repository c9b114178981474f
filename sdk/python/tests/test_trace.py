from __future__ import annotations

import sys
import time
import types
from typing import Any

import fakedaemon as fd
import pytest
from conftest import LAYOUT
from fakedaemon import FakeDaemon

import kvxfer
from kvxfer import _trace

PARENT = f"00-{fd.TRACE_ID}-{fd.PARENT_ID}-01"


def spans(daemon: FakeDaemon) -> dict[str, dict[str, Any]]:
    return {s["name"]: s for g in daemon.wait_for(fd.SPANS) for s in g.body["spans"]}


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-x",
        PARENT[:-1],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{fd.PARENT_ID}-01",
        f"00-{fd.TRACE_ID}-{'0' * 16}-01",
        f" {PARENT}",
        f"{PARENT}\n",
        7,
    ],
)
def test_traceparent_is_checked(cache: kvxfer.Cache, bad: Any) -> None:
    with pytest.raises(kvxfer.InvalidArgument) as e:
        cache.lease([0], traceparent=bad)
    assert e.value.field == "traceparent"
    with pytest.raises(kvxfer.InvalidArgument):
        cache.write([0], to="t", traceparent=bad)


def test_traceparent_of_a_newer_version() -> None:
    context = _trace.parse("x", f"01-{fd.TRACE_ID}-{fd.PARENT_ID}-03-more")
    assert context.sampled and context.traceparent == PARENT


def test_lease_span(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    before = time.time_ns()
    lease = cache.lease([0, 1], traceparent=PARENT)
    sent = daemon.wait_for(fd.LEASE)[0].body["traceparent"]
    assert (
        sent == lease.traceparent and sent.split("-")[1] == fd.TRACE_ID and sent.split("-")[2] != fd.PARENT_ID
    )
    daemon.peer.layers(daemon.next_id, 1, 0)
    daemon.peer.lease_ended(daemon.next_id)
    lease.wait(20)
    client.close()
    span = spans(daemon)["kvxfer.lease"]
    assert (span["trace_id"], span["parent_id"]) == (fd.TRACE_ID, fd.PARENT_ID)
    assert span["span_id"] == sent.split("-")[2]
    assert span["attributes"] == {
        "kvxfer.cache": "c0",
        "kvxfer.blocks": 2,
        "kvxfer.lease.id": fd.LEASE_ID,
        "kvxfer.transfer.id": "ab" * 16,
        "kvxfer.bytes": 4096,
        "kvxfer.peer": "node-b",
        "kvxfer.provider": "tcp",
        "kvxfer.result": "DONE",
    }
    assert [e["name"] for e in span["events"]] == ["layer 1", "layer 0"]
    times = [span["start_unix_ns"], *(e["unix_ns"] for e in span["events"]), span["end_unix_ns"]]
    assert times == sorted(times) and before <= times[0] and "error" not in span


def test_write_span(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    push = cache.write([0, 1], to="t", layerwise=True)
    body = daemon.wait_for(fd.PUSH)[0].body
    assert "traceparent" not in body  # the daemon takes the ticket's
    for n in (2, 0):
        push.layer(n)
    daemon.peer.transfer_ended(
        daemon.next_id, error={"code": 25, "name": "PeerLost", "may_have_written": True}
    )
    with pytest.raises(kvxfer.PeerLost):
        push.wait(20)
    client.close()
    span = spans(daemon)["kvxfer.write"]
    assert (span["trace_id"], span["parent_id"]) == (fd.TRACE_ID, fd.PARENT_ID)
    assert span["span_id"] == body["span_id"] == push.traceparent.split("-")[2]
    assert (
        span["attributes"]["kvxfer.result"] == "PeerLost"
        and span["attributes"]["kvxfer.may_have_written"] is True
    )
    assert "PeerLost" in span["error"] and [e["name"] for e in span["events"]] == ["layer 2", "layer 0"]


def test_unsampled_traces_send_nothing(
    daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache
) -> None:
    unsampled = PARENT[:-2] + "00"
    lease = cache.lease([0], traceparent=unsampled)
    assert daemon.wait_for(fd.LEASE)[0].body["traceparent"].endswith("-00")
    daemon.peer.lease_ended(daemon.next_id)
    lease.wait(20)

    def accept(peer: fd.Peer, got: fd.Got) -> None:
        peer.ok(
            got,
            {"transfer": 1, "transfer_id": "x", "trace_id": fd.TRACE_ID, "parent_id": "", "sampled": False},
        )
        peer.transfer_ended(1)

    daemon.on[fd.PUSH] = accept
    cache.write([0], to="t", traceparent=unsampled).wait(20)
    with client.span("step", unsampled) as span:
        assert not span.sampled and span.traceparent.endswith("-00")
    client.close()
    assert daemon.peer.closed.wait(20) and daemon.count(fd.SPANS) == 0


def test_own_steps(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    def inside(outer: kvxfer.Span) -> None:
        with client.span("inner", outer.traceparent) as inner:
            inner.set("odd", object)  # type: ignore[arg-type]
            inner.set("nan", float("nan"))
            inner.set("huge", 1 << 80)
            inner.event("half way")
            raise ZeroDivisionError("x")

    with client.span("outer", tokens=300, ratio=0.5, cold=True) as outer, pytest.raises(ZeroDivisionError):
        inside(outer)
    client._session.flush_spans()
    got = spans(daemon)
    assert "parent_id" not in got["outer"] and got["inner"]["parent_id"] == got["outer"]["span_id"]
    assert got["inner"]["trace_id"] == got["outer"]["trace_id"] == outer.trace_id
    assert got["outer"]["attributes"] == {"tokens": 300, "ratio": 0.5, "cold": True}
    assert got["inner"]["error"] == "x" and got["inner"]["attributes"]["nan"] == "nan"
    assert got["inner"]["attributes"]["huge"] == str(1 << 80)


def test_spans_are_sent_while_the_client_lives(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    for _ in range(3):
        with client.span("step"):
            pass
    assert "step" in spans(daemon)
    assert daemon.count(fd.SPANS) == 1  # together, not one by one


def test_what_is_too_much_is_cut(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    for i in range(1100):
        with client.span("é" * 500, long="é" * 5000) as span:
            if i == 0:
                for n in range(300):
                    span.event(f"e{n}")
                    span.set(f"k{n}", n)
    client.close()
    assert daemon.peer.closed.wait(20)
    frames = daemon.wait_for(fd.SPANS)
    assert all(len(g.body["spans"]) <= 64 and len(g.raw) < 1 << 20 for g in frames)
    got = [s for g in frames for s in g.body["spans"]]
    assert len(got) <= 1100 and len(got[0]["events"]) == 256 and len(got[0]["attributes"]) == 64
    for s in got:
        assert len(s["name"].encode()) <= 128 and len(s["attributes"]["long"].encode()) <= 1024


def test_opentelemetry_is_used_where_it_is_imported(
    daemon: FakeDaemon, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = types.SimpleNamespace(
        is_valid=True, trace_id=int(fd.TRACE_ID, 16), span_id=0xABC, trace_flags=1
    )
    module: Any = types.ModuleType("opentelemetry.trace")
    module.get_current_span = lambda: types.SimpleNamespace(get_span_context=lambda: context)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)
    cache.lease([0])
    cache.write([0], to="t")
    assert daemon.wait_for(fd.LEASE)[0].body["traceparent"].split("-")[1] == fd.TRACE_ID
    assert daemon.wait_for(fd.PUSH)[0].body["traceparent"] == f"00-{fd.TRACE_ID}-{0xABC:016x}-01"
    context.is_valid = False
    cache.lease([1])
    assert daemon.wait_for(fd.LEASE, 2)[1].body["traceparent"].split("-")[1] != fd.TRACE_ID

    def broken() -> None:
        raise RuntimeError

    module.get_current_span = broken
    cache.lease([2])


def test_calls_that_fail_have_spans(daemon: FakeDaemon, client: kvxfer.Client, cache: kvxfer.Cache) -> None:
    daemon.on[fd.LEASE] = lambda peer, got: peer.error(got, 6, "BlocksBusy", detail="block 0")
    daemon.on[fd.PUSH] = lambda peer, got: peer.error(got, 20, "TicketInvalid")
    with pytest.raises(kvxfer.BlocksBusy):
        cache.lease([0])
    with pytest.raises(kvxfer.TicketInvalid):
        cache.write([0], to="t", traceparent=PARENT)
    client.close()
    got = spans(daemon)
    assert (
        got["kvxfer.lease"]["attributes"] == {"kvxfer.result": "BlocksBusy"}
        and "block 0" in got["kvxfer.lease"]["error"]
    )
    assert (got["kvxfer.write"]["trace_id"], got["kvxfer.write"]["parent_id"]) == (fd.TRACE_ID, fd.PARENT_ID)


def test_spans_survive_the_daemon(daemon: FakeDaemon, client: kvxfer.Client) -> None:
    client.allocate_cache("c", model="m", layout=LAYOUT, num_blocks=1)
    daemon.peer.close()
    with pytest.raises(kvxfer.DaemonUnavailable):
        client.ping()
    with client.span("meanwhile"):
        pass
    client.reconnect(20)
    assert "meanwhile" in spans(daemon)


def test_the_sampler_of_the_environment(
    daemon: FakeDaemon, cache: kvxfer.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace that begins here is sampled as OTEL_TRACES_SAMPLER says, another one as its caller said."""
    low, high = "f" * 16 + "0" * 15 + "1", "0" * 16 + "f" * 16
    for sampler, ratio, want in (
        ("", "", {low: True, high: True}),
        ("always_off", "", {low: False, high: False}),
        ("parentbased_always_off", "", {low: False, high: False}),
        ("parentbased_always_on", "0", {low: True, high: True}),
        ("traceidratio", "0", {low: False, high: False}),
        ("parentbased_traceidratio", "0.5", {low: True, high: False}),
        (" TraceIDRatio ", "1", {low: True, high: True}),
        ("traceidratio", "nonsense", {low: True, high: True}),
        ("traceidratio", "2", {low: True, high: True}),
        ("unknown", "", {low: True, high: True}),
    ):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", ratio)
        assert {trace_id: _trace.samples(trace_id) for trace_id in (low, high)} == want, sampler
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert cache.lease([1]).traceparent.endswith("-00")
    loud = f"00-{low}-{'1' * 16}-01"
    assert cache.lease([2], traceparent=loud).traceparent.endswith("-01")
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert cache.lease([3]).traceparent.endswith("-00")
