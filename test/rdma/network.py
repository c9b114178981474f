"""What the machines are wired to: the addresses, the rxe devices, and what may happen to RoCE packets.

``one``: rxe0 over dummy0, whose packets never leave the device; and rxe_a, rxe_b over the TAP devices tap0
and tap1, between which frames go through a program (``tapwire``), so that they can be held, lost and
doubled.

``pair``: two rails, each a cable of its own with an rxe device at both ends, and a third cable for
everything that is not RoCE.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

#: Ethernet MTU of every RoCE device: RoCE takes the power of two below it, less headers, so 4096. 1500
#: would give 1024.
MTU = 4200


def cable() -> tuple[socket.socket, socket.socket]:
    """An Ethernet cable: its two ends, for ``VM(nics=...)``."""
    return socket.socketpair()


@dataclass(frozen=True)
class Rail:
    """One machine's end of a cable."""

    netdev: str
    rdma: str  # "" where there is no rxe device
    ipv4: str
    ipv6: str


def ends(role: str) -> list[Rail]:
    """The devices of machine ``a`` or ``b``: two rails and the control link."""
    n = {"a": 1, "b": 2}[role]
    return [
        Rail("eth0", "rxe0", f"10.7.0.{n}", f"fd07::{n}"),
        Rail("eth1", "rxe1", f"10.7.1.{n}", f"fd07:0:0:1::{n}"),
        Rail("eth2", "", f"10.7.9.{n}", f"fd07:0:0:9::{n}"),
    ]


ONE = Rail("dummy0", "rxe0", "10.7.0.1", "fd07::1")
WIRE = (Rail("tap0", "rxe_a", "10.8.0.1", "fd08::1"), Rail("tap1", "rxe_b", "10.8.0.2", "fd08::2"))


def _up(rail: Rail, mtu: int) -> list[str]:
    lines = [
        # Addresses outlive "ip link set down", as the IPv4 ones do.
        f"echo 1 > /proc/sys/net/ipv6/conf/{rail.netdev}/keep_addr_on_down",
        f"ip addr add {rail.ipv4}/24 dev {rail.netdev}",
        f"ip addr add {rail.ipv6}/64 dev {rail.netdev} nodad",
        f"ip link set {rail.netdev} mtu {mtu} up",
    ]
    if rail.rdma:
        lines.append(f"rdma link add {rail.rdma} type rxe netdev {rail.netdev}")
    return lines


def pair_script(role: str, mtu: int = MTU) -> str:
    """The commands that make machine ``a`` or ``b`` out of a fresh one."""
    lines = ["set -e", f"hostname {role}", "ip link set lo up"]
    for rail in ends(role):
        lines += _up(rail, mtu)
    return "\n".join(lines)


def one_script(mtu: int = MTU) -> str:
    """The commands that make machine ``one``.

    Sending to oneself: a packet to an own address of another device normally goes through the loop-back
    device, where rxe does not see it. IPv4 looks a route up with the device given, and so finds the cable
    by itself. IPv6 prefers the table of local addresses whatever the device is, so that table comes behind
    a rule for each device. Neighbours are static: neither end answers for an address that is its own.
    """
    lines = ["set -e", "hostname one", "ip link set lo up", *_up(ONE, mtu)]
    # Rules are asked by rising number: the end's other address by its device, then the local table, which
    # was 0 before.
    lines += ["ip -6 rule add pref 200 lookup local", "ip -6 rule del pref 0"]
    for i, (rail, other) in enumerate(zip(WIRE, reversed(WIRE), strict=True)):
        tap, conf = rail.netdev, f"/proc/sys/net/ipv4/conf/{rail.netdev}"
        mac = f"02:00:00:00:00:0{1 - i}"
        lines += [
            f"ip tuntap add dev {tap} mode tap",
            f"ip link set {tap} address 02:00:00:00:00:0{i} txqueuelen 10000",
            f"echo 1 > {conf}/accept_local; echo 0 > {conf}/rp_filter; echo 1 > {conf}/arp_ignore",
            *_up(rail, mtu),
            f"ip neigh replace {other.ipv4} lladdr {mac} dev {tap} nud permanent",
            f"ip neigh replace {other.ipv6} lladdr {mac} dev {tap} nud permanent",
            f"ip -6 route add {other.ipv6} dev {tap} src {rail.ipv6} table {100 + i}",
            f"ip -6 rule add pref {100 + i} oif {tap} lookup {100 + i}",
        ]
    lines.append("echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter")
    return "\n".join(lines)


def roce_band(dev: str) -> str:
    """The commands that give RoCE packets leaving ``dev`` a queue of their own, 1:4, behind all others'."""
    return "\n".join(
        [
            "set -e",
            f"tc qdisc replace dev {dev} root handle 1: prio bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1",
            f"tc qdisc add dev {dev} parent 1:4 handle 40: netem limit 100000",
            f"tc filter add dev {dev} parent 1: prio 1 protocol ip u32"
            " match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:4",
            f"tc filter add dev {dev} parent 1: prio 2 protocol ipv6 u32"
            " match ip6 protocol 17 0xff match ip6 dport 4791 0xffff flowid 1:4",
        ]
    )


def netem_words(
    delay_ms: float = 0,
    jitter_ms: float = 0,
    loss_percent: float = 0,
    duplicate_percent: float = 0,
    reorder_percent: float = 0,
) -> str:
    """netem's options. Packets that are reordered overtake the delayed ones, so that needs a delay."""
    if reorder_percent and not delay_ms:
        raise ValueError("reorder_percent needs a delay_ms above 0: what is reordered is sent at once")
    words = f"limit 100000 delay {delay_ms}ms"
    if jitter_ms:
        words += f" {jitter_ms}ms"
    if loss_percent:
        words += f" loss {loss_percent}%"
    if duplicate_percent:
        words += f" duplicate {duplicate_percent}%"
    if reorder_percent:
        words += f" reorder {reorder_percent}%"
    return words
