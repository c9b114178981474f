"""Fixtures: virtual machines, booted once and used by one test file after the other.

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


class Machines:
    """The machines that are up, by the fixture they are for."""

    def __init__(self) -> None:
        self._up: dict[str, list[VM]] = {}

    def get(self, kind: str, files: Mapping[str, Path]) -> list[VM]:
        """The machines ``one`` or ``a`` and ``b``, with ``files`` in them."""
        vms = self._up.get(kind, [])
        if vms and all(vm.alive for vm in vms):
            for vm in vms:
                vm.install(files)
            return vms
        self.end(kind)
        began = time.monotonic()
        roles = ["one"] if kind == "one" else ["a", "b"]
        cables = [network.cable() for _ in network.ends("a")] if kind == "pair" else []
        for i, role in enumerate(roles):
            self._up.setdefault(kind, []).append(VM(role, files, [c[i] for c in cables]))
        for vm in self._up[kind]:
            vm.booted().run(network.one_script() if kind == "one" else network.pair_script(vm.role))
            _times[f"{vm.role}: boot"] = vm.boot_seconds
        _times[f"{kind}: until it could be used"] = time.monotonic() - began
        return self._up[kind]

    def end(self, kind: str) -> None:
        """End machines."""
        for vm in self._up.pop(kind, []):
            vm.close()

    def end_all(self) -> None:
        """End all that are up."""
        for kind in list(self._up):
            self.end(kind)


@pytest.fixture(scope="session")
def fleet(machines: None) -> Iterator[Machines]:
    """All machines of the run."""
    fleet = Machines()
    try:
        yield fleet
    finally:
        fleet.end_all()


def _used(
    fleet: Machines, kind: str, files: Mapping[str, Path], request: pytest.FixtureRequest
) -> Iterator[list[VM]]:
    failed = request.session.testsfailed
    try:
        vms = fleet.get(kind, files)
        yield vms
        for vm in vms:
            vm.reset()
    except BaseException:
        fleet.end(kind)
        raise
    if request.session.testsfailed > failed:
        fleet.end(kind)  # whatever it was, the next file begins with fresh ones


@pytest.fixture(scope="module")
def one(fleet: Machines, guest_files: Mapping[str, Path], request: pytest.FixtureRequest) -> Iterator[VM]:
    """One machine with a device to itself (rxe0) and two on both ends of tapwire (rxe_a, rxe_b)."""
    for vms in _used(fleet, "one", guest_files, request):
        yield vms[0]


@pytest.fixture(scope="module")
def pair(fleet: Machines, guest_files: Mapping[str, Path], request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two machines, a and b, with rxe0 and rxe1 each."""
    for vms in _used(fleet, "pair", guest_files, request):
        yield Pair(*vms)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long machines took."""
    if _times:
        terminalreporter.write_sep("-", "machines")
        for what, seconds in _times.items():
            terminalreporter.write_line(f"{seconds:6.1f} s  {what}")
