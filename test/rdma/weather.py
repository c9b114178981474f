"""What happens to packets between two machines: netem on what carries payload, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from vm import VM

ROCE_PORT = 4791


@dataclass(frozen=True)
class Sky:
    """A kind of weather. Times in ms, shares in per cent of packets. The rate, Mbit/s (0: none), draws apart
    what was sent at once.
    """

    delay: int = 0
    jitter: int = 0
    loss: float = 0
    duplicate: float = 0
    reorder: float = 0
    rate: int = 0

    def netem(self) -> str:
        """Netem's own words. What is reordered goes at once, past all that is delayed."""
        words = f"delay {self.delay}ms {self.jitter}ms" if self.delay else ""
        for name in ("loss", "duplicate", "reorder"):
            if share := getattr(self, name):
                words += f" {name} {share}%"
        if self.rate:
            words += f" rate {self.rate}mbit"
        return f"{words} limit 100000"


class Weather:
    """The weather on what a machine sends through some interfaces: UDP or TCP packets to or from a port."""

    def __init__(self, machine: VM, interfaces: list[str], protocol: str, port: int) -> None:
        self._machine, self._interfaces = machine, interfaces
        self.sky = Sky()
        self.clear()
        number = {"udp": 17, "tcp": 6}[protocol]
        for dev in interfaces:
            # A band of their own: by default what asks for cheap transport shares the last one.
            words = [
                f"tc qdisc add dev {dev} root handle 1: prio bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1",
                self._netem("add", dev),
            ]
            for at, side in enumerate(("dport", "sport")):
                for family, match in (("ip", "ip"), ("ipv6", "ip6")):
                    words.append(
                        f"tc filter add dev {dev} parent 1: prio {10 * at + len(match)} protocol {family} u32"
                        f" match {match} protocol {number} 0xff match {match} {side} {port} 0xffff flowid 1:4"
                    )
            machine.run(" && ".join(words))

    def _netem(self, what: str, dev: str) -> str:
        return f"tc qdisc {what} dev {dev} parent 1:4 handle 40: netem {self.sky.netem()}"

    def change(self, sky: Sky) -> None:
        """Another sky; packets that are under way keep theirs."""
        self.sky = sky
        self._machine.run(" && ".join(self._netem("change", dev) for dev in self._interfaces))

    def clear(self) -> None:
        """No weather any more; what is under way is lost."""
        self._machine.run("; ".join(f"tc qdisc del dev {dev} root" for dev in self._interfaces), check=False)

    @property
    def delay(self) -> float:
        """Milliseconds that a packet usually takes."""
        return self.sky.delay

    @property
    def longest(self) -> float:
        """Milliseconds after which no packet is under way."""
        return self.sky.delay + 2 * self.sky.jitter
