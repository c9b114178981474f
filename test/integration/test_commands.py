"""The operator's commands over real daemons: what they list, and what a hanging transfer waits for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import kvxfer
import pytest

from conftest import Attach, Start
from contents import MODEL, SMALL, allocate
from daemon import PATIENCE, Daemon, NatsServer, command, until
from test_tickets import remade


def ask(d: Daemon, *args: str, code: int = 0) -> Any:
    """A command's JSON object; of one that fails the error."""
    got = command(*args, "--socket", str(d.socket), "--json")
    assert got.returncode == code, got.stdout + got.stderr
    return json.loads(got.stdout if got.stdout else got.stderr)


def text(d: Daemon, *args: str, code: int = 0) -> str:
    """What a command prints for people."""
    got = command(*args, "--socket", str(d.socket))
    assert got.returncode == code, got.stdout + got.stderr
    return got.stdout


def test_every_command(nodes: tuple[Daemon, Daemon], attach: Attach, nats: NatsServer) -> None:
    """One layerwise push that the client leaves unfinished, seen by every command on both of its ends."""
    prefill, decode = nodes
    near, far = attach(prefill), attach(decode)
    source, target = allocate(near, "source"), allocate(far, "target")
    source.publish([9, 10], [b"0123456789abcdef", b"fedcba9876543210"])
    until("both to be seen", lambda: len(near.status().nodes) == len(far.status().nodes) == 2)

    rows = ask(prefill, "nodes")
    assert not rows["stale"]
    assert [(n["node"], n.get("own", False)) for n in rows["nodes"]] == [("decode", False), ("prefill", True)]
    assert all(n["min_protocol"] == 1 and n["providers"] and n["told_ms"] >= 0 for n in rows["nodes"])
    assert "prefill *" in text(prefill, "nodes")
    until("both caches to be seen", lambda: len(ask(prefill, "caches")["caches"]) == 2)
    (cache,) = ask(prefill, "caches", "--node", "decode")["caches"]
    assert (cache["cache"], cache["model"], cache["blocks"]) == ("target", MODEL, 32)
    assert cache["layout"]["layers"] == SMALL.layers
    assert cache["bytes"] == 32 * SMALL.block_bytes
    assert "HND 5L" in text(decode, "caches")

    lease = target.lease([4, 5, 6], ttl=PATIENCE)
    waiting = ask(decode, "leases")["leases"][0]
    assert (waiting["lease_id"], waiting["waiting"]["for"]) == (lease.lease_id, "source")
    push = source.write([0, 1, 2], to=lease.ticket, layerwise=True, timeout=PATIENCE)
    push.layer(0)
    push.layer(1, 0, 2)
    lease.wait_layer(0, PATIENCE)

    def there(where: Daemon, what: str, waits_for: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def hit() -> bool:
            found[:] = ask(where, "transfers", "show", push.transfer_id[:9])[what]
            return bool(found[0]["waiting"]["for"] == waits_for)

        until(f"{what} to wait for {waits_for}", hit, pause=0.1)
        return found[0]

    row = there(prefill, "transfers", "client")
    assert row["missing"] == [{"layer": 1, "pieces": 1}, *({"layer": n, "pieces": 3} for n in (2, 3, 4))]
    assert "to hand over 10 of 15 pieces" in row["waiting"]["text"]
    assert (row["pid"], row["peer"], row["trace_id"]) == (os.getpid(), "decode", push.trace_id)
    shown = text(prefill, "transfers", "show", push.transfer_id)
    assert "layers 2-4: 3 pieces each" in shown
    assert "to hand over 10 of 15 pieces" in shown
    assert push.transfer_id[:12] in text(prefill, "transfers")
    row = there(decode, "leases", "pieces")
    assert (row["lease_id"], row["peer"], row["arrived"]) == (lease.lease_id, "prefill", 5)
    assert row["missing"] == there(prefill, "transfers", "client")["missing"]
    assert "10 of 15 pieces from prefill" in text(decode, "leases", lease.lease_id[:8])
    assert ask(decode, "transfers") == {"transfers": []}

    blocks = ask(decode, "blocks", "target")
    assert blocks["counts"] == {
        "total": 32, "free": 29, "leased": 3, "committed": 0, "revoking": 0, "held": 0,
    }  # fmt: skip
    assert [(b["block"], b["state"], b["lease"]) for b in blocks["blocks"]] == [
        (n, "LEASED", lease.lease_id) for n in (4, 5, 6)
    ]
    assert "4-6     LEASED" in text(decode, "blocks", "target")
    held = ask(prefill, "blocks", "source", "--state", "HELD")["blocks"]
    assert [(b["block"], b["holds"]) for b in held] == [(n, 1) for n in (0, 1, 2)]
    published = ask(prefill, "blocks", "source", "--state", "COMMITTED")["blocks"]
    assert [b["key"] for b in published] == [b"0123456789abcdef".hex(), b"fedcba9876543210".hex()]

    assert ask(decode, "log-level") == {"level": "info", "was": "info"}
    assert text(decode, "log-level", "debug") == "debug (was info)\n"
    ask(decode, "nodes")
    until("the log to say more", lambda: "observer detached" in decode.log())
    assert ask(decode, "log-level", "warn")["was"] == "debug"

    # The target drains: the push goes on, nothing new begins, and the commands still work.
    left = ask(decode, "drain", "--timeout", "0", code=1)
    assert (left["idle"], left["leases"], left["transfers"]) == (False, 1, 0)
    assert decode.get("/readyz")[0] == 503
    with pytest.raises(kvxfer.Draining, match="decode is draining"):
        target.lease([7], ttl=1)
    with pytest.raises(kvxfer.Draining):
        attach(decode)
    until("the registry to say it", lambda: ask(prefill, "nodes")["nodes"][0].get("draining"), pause=0.1)
    push.layer(1, 2)
    for layer in range(2, SMALL.layers):
        push.layer(layer)
    push.finish()
    push.wait()
    lease.wait()
    assert ask(decode, "drain")["idle"]
    assert "idle" in text(decode, "drain")
    assert ask(prefill, "transfers") == {"transfers": []}
    (row,) = ask(prefill, "transfers", "--all")["transfers"]
    assert (row["transfer_id"], row["result"], row["state"]) == (push.transfer_id, "DONE", "ENDED")
    assert row["bytes"] == 3 * SMALL.block_bytes
    assert "DONE" in text(prefill, "transfers", "--all")
    (shown_row,) = ask(prefill, "transfers", "show", push.transfer_id)["transfers"]
    assert {**shown_row, "ended_ms": 0} == {**row, "ended_ms": 0}
    assert ask(decode, "transfers", "show", push.transfer_id, code=1)["error"]["name"] == "NotFound"

    nats.kill()
    until("the view to be stale", lambda: ask(prefill, "nodes")["stale"], pause=0.1)
    assert text(prefill, "nodes").startswith("The registry is away")
    assert len(ask(prefill, "nodes")["nodes"]) == 2
    nats.start()


def test_tenants_are_apart(daemon: Start, attach: Attach) -> None:
    """A tenant sees its own; root and the daemon's own user see all where they say so."""
    node = daemon("n", "--allow-tenants", "blue")
    allocate(attach(node), "cache").lease([1], ttl=PATIENCE)
    allocate(attach(node, tenant="blue"), "cache").lease([1, 2], ttl=PATIENCE)

    def tenants(what: str, *args: str) -> list[str]:
        return [x["tenant"] for x in ask(node, what, *args)[what]]

    until("both to be seen", lambda: tenants("caches", "--all-tenants") == ["blue", "default"], pause=0.1)
    assert tenants("caches") == ["default"]
    assert tenants("leases") == ["default"]
    assert tenants("leases", "--tenant", "blue") == ["blue"]
    assert tenants("leases", "--all-tenants") == ["default", "blue"]
    assert ask(node, "blocks", "blue/cache", code=1)["error"]["name"] == "NotFound"
    assert ask(node, "blocks", "blue/cache", "--all-tenants")["counts"]["leased"] == 2
    assert ask(node, "blocks", "cache", "--all-tenants", code=1)["error"]["field"] == "cache"
    assert ask(node, "leases", "--tenant", "red", code=1)["error"]["name"] == "PermissionDenied"


@contextlib.contextmanager
def unreachable() -> Iterator[str]:
    """An address that answers nothing: the queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            s = stack.enter_context(socket.socket())
            s.setblocking(False)
            s.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def stuck(d: Daemon, begin: Callable[[], kvxfer.Push], waits_for: str) -> dict[str, Any]:
    """The row of a transfer that waits for something.

    A node gives its peer up after some seconds. Where the command took longer than that, the transfer is
    begun again.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        push = begin()
        try:
            while True:
                found = command("transfers", "show", push.transfer_id, "--socket", str(d.socket), "--json")
                assert found.returncode == 0, found.stderr
                (row,) = json.loads(found.stdout)["transfers"]
                if row.get("waiting", {}).get("for") == waits_for:
                    return {**row, "shown": text(d, "transfers", "show", push.transfer_id)}
                if row["state"] == "ENDED":
                    break
        finally:
            push.cancel()
            push.wait_released(PATIENCE)
    raise AssertionError(f"no transfer waited for {waits_for}")


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
def test_hanging_transfers_say_why(pair: tuple[Daemon, Daemon], attach: Attach) -> None:
    """An address that is silent, a peer that is stopped before the link, before BIND and amid a layer."""
    prefill, decode = pair
    near, far = attach(prefill), attach(decode)
    source, target = allocate(near, "source"), allocate(far, "target")
    leases = [target.lease([n], ttl=2 * PATIENCE) for n in range(32)]

    def begin(**changes: object) -> kvxfer.Push:
        ticket = leases.pop().ticket
        return source.write(
            [0], to=remade(ticket, **changes) if changes else ticket, layerwise=True, timeout=PATIENCE
        )

    with unreachable() as addr:
        row = stuck(prefill, lambda: begin(node="nowhere", addr=addr), "link")
        assert (row["waiting"]["addr"], row["waiting"]["peer"]) == (addr, "nowhere")
        assert f"a link to nowhere: connect at {addr}" in row["waiting"]["text"]
        assert "a link to nowhere" in row["shown"]

    decode.freeze()
    row = stuck(prefill, begin, "link")
    assert row["waiting"]["addr"] == decode.info["peer_addr"]
    assert f"hello at {decode.info['peer_addr']}" in row["waiting"]["text"]

    def link() -> kvxfer.Push:
        """A push whose first layer is there; the link may still be dying of the freeze before."""
        decode.signal(signal.SIGCONT)
        while True:
            lease = leases[-1]
            push = begin()
            push.layer(0)
            with contextlib.suppress(kvxfer.KvxferError):
                lease.wait_layer(0, PATIENCE)
                return push

    def begin_on_a_link() -> kvxfer.Push:
        first = link()
        decode.freeze()
        push = begin()
        first.cancel()
        return push

    row = stuck(prefill, begin_on_a_link, "bind")
    assert "the answer of decode to BIND" in row["waiting"]["text"]
    assert "BINDING" in row["shown"]

    def begin_and_move() -> kvxfer.Push:
        push = link()
        decode.freeze()
        push.layer(1)
        return push

    row = stuck(prefill, begin_and_move, "provider")
    assert row["operations"] == 1
    assert "provider tcp to complete 1 operations to decode" in row["waiting"]["text"]
    decode.signal(signal.SIGCONT)
