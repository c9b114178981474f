"""What processes and the machine have used: processor time, memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path


def cpu_ns(pid: int) -> int:
    """Nanoseconds that the threads of a process have run, those that ended included.

    Raises:
        OSError: there is no such process.
    """
    # The clock that clock_getcpuclockid makes of a pid; time has no function of that name.
    return time.clock_gettime_ns(~pid << 3 | 2)


def cpu_of(pids: Iterable[int]) -> int:
    """Nanoseconds of all of them together."""
    return sum(cpu_ns(pid) for pid in pids)


def rss(pid: int, shared: bool = True) -> int:
    """Resident bytes of a process; without ``shared`` those of shared memory objects are left out."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "RssShmem"):
            fields[key] = int(value.split()[0]) << 10
    return fields["VmRSS"] - (0 if shared else fields["RssShmem"])


def machine_ns(stat: str | None = None) -> int:
    """Nanoseconds that all processors have worked, or were withheld by a hypervisor, since the host's start.

    Args:
        stat: what /proc/stat holds; None reads it.
    """
    line = (stat or Path("/proc/stat").read_text()).split("\n", 1)[0].split()
    if line[0] != "cpu" or len(line) < 9:
        raise ValueError(f"/proc/stat begins with {' '.join(line):.80}")
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(v) for v in line[1:9])
    return (user + nice + system + irq + softirq + steal) * (10**9 // os.sysconf("SC_CLK_TCK"))


def describe() -> dict[str, str | int]:
    """The machine, for the record: nothing that would name it."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    memory = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": model,
        "memory_bytes": memory,
        "kernel": os.uname().release.split("-")[0],
        "machine": os.uname().machine,
    }
