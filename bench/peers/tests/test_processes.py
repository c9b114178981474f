"""Processor time and memory, of this very process."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from processes import cpu_ns, cpu_of, describe, machine_ns, rss


def test_processor_time_is_this_processes() -> None:
    begun, own = cpu_ns(os.getpid()), time.process_time_ns()
    while time.process_time_ns() - own < 20_000_000:
        pass
    used = cpu_ns(os.getpid()) - begun
    assert used >= 20_000_000
    assert cpu_of([os.getpid()]) >= begun + used
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_ns(2**22 + 1)  # above the kernel's highest pid


def test_resident_memory_grows_with_touched_pages() -> None:
    before = rss(os.getpid())
    held = np.ones(32 << 20, np.uint8)
    assert rss(os.getpid()) - before >= 30 << 20
    assert rss(os.getpid(), shared=False) <= rss(os.getpid())
    assert held[0] == 1


def test_the_machines_time_leaves_idle_out() -> None:
    tick = 10**9 // os.sysconf("SC_CLK_TCK")
    assert machine_ns("cpu  1 2 3 1000 2000 4 5 6 7 8\ncpu0 0 0") == 21 * tick
    with pytest.raises(ValueError, match="begins with"):
        machine_ns("nothing here")
    assert machine_ns() > 0


def test_the_machine_is_described_without_its_name() -> None:
    words = describe()
    assert words["cpus"]
    assert os.uname().nodename not in str(words.values())
