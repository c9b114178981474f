"""Go tests that need an RDMA device, run in a virtual machine, or with RDMA_DEVICE on this host's own."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import kernel
import network
from vm import VM


def packages() -> list[str]:
    """The packages whose tests ask tapwire for a device, and tapwire. Without one those tests skip."""
    ask = {
        f.parent.relative_to(kernel.ROOT)
        for f in (kernel.ROOT / "rdma").rglob("*_test.go")
        if "kvxfer/test/rdma/tapwire" in f.read_text()
    }
    return ["./test/rdma/tapwire", *(f"./{p}" for p in sorted(ask))]


#: Of this package most tests need no device, and have run on the host.
ONLY = {"./rdma/verbs": "-test.run=OnDevices"}
DEVICES = os.environ.get("KVXFER_RDMA_DEVICES", "")
#: What a whole package may take, in seconds; the machine is slow.
LIMIT = 480

Run = Callable[[str, Mapping[str, str]], tuple[int, str]]


def name(package: str) -> str:
    """A package's path as a file's name."""
    return package.removeprefix("./").replace("/", "-")


def binary(package: str) -> Path:
    """The package's tests as a program, without the race detector, which takes too long under TCG."""
    out = kernel.BUILD / f"{name(package)}.test"
    subprocess.run(
        ["go", "test", "-c", "-trimpath", "-ldflags=-w", "-o", out, package], cwd=kernel.ROOT, check=True
    )
    return out


@pytest.fixture(scope="module")
def guest_files() -> Mapping[str, Path]:
    """The tests' programs and their data, each package in a directory of its own."""
    files: dict[str, Path] = {}
    for p in packages():
        files[f"/pkg/{name(p)}/run"] = binary(p)
        for f in (kernel.ROOT / p / "testdata").rglob("*"):
            if f.is_file():
                files[f"/pkg/{name(p)}/{f.relative_to(kernel.ROOT / p)}"] = f
    return files


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a package's program and returns its status and what it wrote."""
    chosen = os.environ.get("KVXFER_RDMA_TEST_ARGS", "").split()
    common = ["-test.v", f"-test.timeout={LIMIT}s"]

    def args(package: str) -> list[str]:
        return [*common, *(chosen or [ONLY[package]] if package in ONLY else chosen)]

    def here(package: str, env: Mapping[str, str]) -> tuple[int, str]:
        env = {**os.environ, **env, "KVXFER_RDMA_DEVICES": DEVICES}
        argv = [str(binary(package)), *args(package)]
        r = subprocess.run(argv, cwd=kernel.ROOT / package, env=env, text=True, capture_output=True)
        return r.returncode, r.stdout + r.stderr

    def there(package: str, env: Mapping[str, str]) -> tuple[int, str]:
        vm: VM = request.getfixturevalue("one")
        wire = {
            "KVXFER_RDMA_DEVICES": ",".join(r.rdma for r in network.WIRE),
            "KVXFER_RDMA_WIRE": ",".join(r.netdev for r in network.WIRE),
        }
        where = f"/pkg/{name(package)}"
        log = kernel.BUILD / f"{name(package)}.log"
        p = vm.start([f"{where}/run", *args(package)], env={**env, **wire}, cwd=where, log=log)
        r = p.wait(LIMIT + 30)
        return r.rc, r.out + r.err

    return here if DEVICES else there


@pytest.mark.timeout(LIMIT + 240)
@pytest.mark.parametrize("package", packages())
def test_package(package: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Every test of the package passes; what skips is shown with its reason."""
    seed = os.environ.get("KVXFER_SEED", str(time.time_ns()))
    began = time.monotonic()
    rc, said = run(package, {"KVXFER_SEED": seed, "CI": os.environ.get("CI", "")})
    passed = re.findall(r"^--- PASS: (\S+)", said, re.M)
    skipped = re.findall(r"^ *--- SKIP: (\S+)", said, re.M)
    with capsys.disabled():
        print(f"\n{package}: {len(passed)} passed in {time.monotonic() - began:.0f} s (KVXFER_SEED={seed})")
        for test in skipped:
            why = re.search(rf"^=== RUN +{re.escape(test)}\n((?: +.*\n)*)", said, re.M)
            reason = why[1].strip().splitlines()[-1] if why and why[1] else "see the log"
            print(f"    skipped: {test}: {reason}")
    if rc != 0:
        wrong = "\n".join(re.findall(r"^ *--- FAIL: .*|^panic: .*|^fatal error: .*", said, re.M))
        pytest.fail(f"{package} ended with {rc}\n{wrong}\n...\n{said[-6000:]}", pytrace=False)
    assert passed
