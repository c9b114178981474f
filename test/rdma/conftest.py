"""Fixtures: virtual machines, booted once a test file.

A file that needs binaries in its machines defines a fixture ``guest_files`` of module scope: {path in the
guest: path here}.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import kernel
import network
from vm import VM

_times: dict[str, float] = {}


class Pair(NamedTuple):
    """Two machines on two rails and a control link; network.ends says their devices and addresses."""

    a: VM
    b: VM


@functools.cache
def _why_not() -> str:
    """Make what machines are made of; returns why that cannot be done here, or nothing."""
    began = time.monotonic()
    try:
        kernel.packages()
        kernel.kernel()
    except kernel.UnavailableError as e:
        return f"no virtual machines here: {e}"
    _times["setup"] = time.monotonic() - began
    return ""


@pytest.fixture(scope="session")
def machines() -> None:
    """Machines can be built here. Where they cannot, CI fails and everybody else reads what to install."""
    if why := _why_not():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """What a file's machines have besides the base system."""
    return {}


def _note(name: str, vm: VM, began: float) -> None:
    ready = time.monotonic() - began
    _times[f"{name}: boot"] = vm.boot_seconds
    print(f"{name}: booted in {vm.boot_seconds:.1f} s, ready after {ready:.1f} s")


@pytest.fixture(scope="module")
def one(machines: None, guest_files: Mapping[str, Path], request: pytest.FixtureRequest) -> Iterator[VM]:
    """One machine with a device to itself (rxe0) and two over tapwire (rxe_a, rxe_b)."""
    began = time.monotonic()
    vm = VM("one", guest_files)
    try:
        vm.booted().run(network.one_script())
        _note(f"{request.node.name} one", vm, began)
        yield vm
    finally:
        vm.close()


@pytest.fixture(scope="module")
def pair(machines: None, guest_files: Mapping[str, Path], request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two machines, a and b, with rxe0 and rxe1 each."""
    began = time.monotonic()
    cables = [network.cable() for _ in network.ends("a")]
    vms: list[VM] = []
    try:
        for i, role in enumerate("ab"):
            vms.append(VM(role, guest_files, [c[i] for c in cables]))
        for vm in vms:
            vm.booted().run(network.pair_script(vm.role))
            _note(f"{request.node.name} {vm.role}", vm, began)
        yield Pair(*vms)
    finally:
        for vm in vms:
            vm.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long machines took."""
    if _times:
        terminalreporter.write_sep("-", "machines")
        for what, seconds in _times.items():
            terminalreporter.write_line(f"{seconds:6.1f} s  {what}")
