"""Tenants: two on one daemon, and nothing that passes between them."""

from __future__ import annotations

import random

import kvxfer
import pytest

from conftest import Attach, Start
from daemon import PATIENCE, NatsServer, until
from transfers import allocate, move


def test_nothing_crosses(nats: NatsServer, daemon: Start, attach: Attach, rng: random.Random) -> None:
    near = daemon("near", "--nats", nats.url, "--tenant", "red", "--allow-tenants", "blue,default")
    far = daemon("far", "--nats", nats.url, "--allow-tenants", "red,blue")
    red, blue, plain = attach(near), attach(near, tenant="blue"), attach(near, tenant="default")
    assert (red.tenant, blue.tenant, plain.tenant) == ("red", "blue", "default")

    # One name, three caches; the directory has each under its tenant.
    target, other = allocate(red, "kv"), allocate(blue, "kv")
    allocate(plain, "kv")
    with pytest.raises(kvxfer.AlreadyExists):
        allocate(attach(near), "kv")
    epoch = red.epoch

    def entries() -> list[str]:
        return sorted(
            k.removeprefix(f"cache.near.{epoch}.") for k in nats.entries() if k.startswith("cache.near.")
        )

    until("the three in the registry", lambda: entries() == ["blue.kv", "kv", "red.kv"])

    lease = target.lease([1, 2], ttl=PATIENCE)
    target.memory[:] = b"\x55" * len(target.memory)
    for thief in (other, allocate(attach(far, tenant="blue"), "far"), allocate(attach(far), "far")):
        with pytest.raises(kvxfer.PermissionDenied, match="tenant") as denied:
            thief.write([0, 1], to=lease.ticket, timeout=PATIENCE).wait()
        assert not denied.value.may_have_written
    assert bytes(target.memory) == b"\x55" * len(target.memory)
    friend = allocate(attach(far, tenant="red"), "far")
    friend.write([0, 1], to=lease.ticket, timeout=PATIENCE).wait()
    lease.wait()
    move(friend, target, rng)
    other.drop()
    until("one to be withdrawn", lambda: entries() == ["kv", "red.kv"])


def test_who_may_use_which(daemon: Start) -> None:
    node = daemon("n", "--tenant", "red", "--allow-tenants", "green,blue:4242+4243")
    with node.connect() as own, node.connect(tenant="green") as listed:
        assert (own.tenant, listed.tenant) == ("red", "green")
    for tenant in ("blue", "default"):  # another user's, and one that is not listed
        with pytest.raises(kvxfer.PermissionDenied) as denied:
            node.connect(tenant=tenant)
        assert denied.value.field == "tenant"
