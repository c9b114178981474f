"""Two hosts as network namespaces that a veth pair joins. It needs root and iproute2."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Sequence

IPV4 = ("10.77.0.1", "10.77.0.2")
IPV6 = ("fd00:77::1", "fd00:77::2")
INTERFACE = "kv0"
"""The one interface of each host beside lo. Only these addresses, inside of the namespaces, are used."""

_numbers = itertools.count()


def ip(*args: str) -> None:
    """Run ip(8)."""
    done = subprocess.run(["ip", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(args)}: {done.stdout.strip()}")


class Host:
    """One namespace."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self.name, self.addresses = name, tuple(addresses)
        self.prefix = ("ip", "netns", "exec", name)
        ip("netns", "add", name)

    def configure(self) -> None:
        """Give the interface its addresses."""
        ip("-n", self.name, "link", "set", "lo", "up")
        for a in self.addresses:
            # Without duplicate address detection an IPv6 address can be listened on at once.
            rest = (f"{a}/64", "nodad") if ":" in a else (f"{a}/24",)
            ip("-n", self.name, "address", "add", "dev", INTERFACE, *rest)
        self.link("up")

    def link(self, state: str) -> None:
        """Turn the interface "up" or "down"."""
        ip("-n", self.name, "link", "set", INTERFACE, state)


class Pair:
    """Two hosts; ``with`` removes them, whatever happened."""

    def __init__(self, *families: Sequence[str]) -> None:
        self._families = families
        self.hosts: list[Host] = []

    def __enter__(self) -> Pair:
        try:
            for side in range(2):
                name = f"kvx-{os.getpid()}-{next(_numbers)}"
                self.hosts.append(Host(name, [family[side] for family in self._families]))
            a, b = self.hosts
            ip(
                "-n",
                a.name,
                "link",
                "add",
                INTERFACE,
                "type",
                "veth",
                "peer",
                "name",
                INTERFACE,
                "netns",
                b.name,
            )
            for host in self.hosts:
                host.configure()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self.hosts:
            ip("netns", "delete", self.hosts.pop().name)
