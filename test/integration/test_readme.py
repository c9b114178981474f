"""The documents are true: README's program runs as it is written, links lead somewhere, cited tests exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvxfer
import pytest

from daemon import PATIENCE, PLAIN_BINARY, ROOT, until


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def serve_lines(page: str) -> list[str]:
    """The daemons of a page: one alone, then a fleet."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if "serve" in line]


@contextmanager
def serving(run_dir: Path, *args: str, words: Sequence[str] = (str(PLAIN_BINARY), "serve")) -> Iterator[None]:
    """A daemon on ports of the kernel's choice: the ones that it has by default may be in use here."""
    env = {**os.environ, "KVXFER_LISTEN": "127.0.0.1:0", "KVXFER_HTTP": "127.0.0.1:0"}
    env.setdefault("KVXFER_STATE_DIR", f"{run_dir}/kvx/state")
    with (run_dir / "log.txt").open("wb") as log:
        daemon = subprocess.Popen(
            [*words, *args], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        until("the daemon", (run_dir / "kvx" / "state" / "node.json").exists)
        yield
    finally:
        daemon.terminate()
        code = daemon.wait(PATIENCE)
    assert code == 0, (run_dir / "log.txt").read_text()


def run_python(run_dir: Path, program: str) -> str:
    """What a program prints; it must end well and warn of nothing."""
    (run_dir / "first.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "first.py"],
        cwd=run_dir, env={**os.environ, "PYTHONPATH": str(ROOT / "sdk" / "python" / "src")},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_first_program(run_dir: Path) -> None:
    page = (ROOT / "README.md").read_text().replace("/tmp/kvx/", f"{run_dir}/kvx/")
    serve = serve_lines(page)[0]
    (program,) = blocks(page, "python")
    words = shlex.split(serve)
    assert ROOT / words[0] == PLAIN_BINARY
    with serving(run_dir, words=words):
        assert run_python(run_dir, program) == "196608 bytes over shm; notification b'first token'\n"
        (main,) = blocks(page, "go")
        assert run_go(main, run_dir) == '196608 bytes over shm; notification "first token"; 4\n'


def test_python_quick_start(run_dir: Path) -> None:
    """The code blocks of the page, one after the other, as one program."""
    page = (ROOT / "docs" / "quickstart" / "python.md").read_text()
    socket = run_dir / "kvxfer.sock"
    with serving(run_dir, "--socket", str(socket), "--http", "off"):
        program = "\n".join(blocks(page, "python")).replace("/tmp/kvx/kvxfer.sock", str(socket))
        assert run_python(run_dir, program) == (
            "196608 bytes over shm\nrefused: LeaseRevoked, retryable: True\n"
        )


def test_go_quick_start(run_dir: Path) -> None:
    """The code blocks of the page as two programs: one of a daemon's client, and one with its own node."""
    page = (ROOT / "docs" / "quickstart" / "go.md").read_text()
    socket = run_dir / "kvxfer.sock"
    head, *steps, whole = blocks(page.replace("/tmp/kvx/kvxfer.sock", str(socket)), "go")
    with serving(run_dir, "--socket", str(socket), "--http", "off"):
        main = "\n".join([head, "func main() {", *steps, "}"])
        assert run_go(main, run_dir) == (
            "196608 bytes over shm; first token\nrefused: LeaseRevoked, retryable: true\n"
            "3 blocks from prefill-0\n"
        )
    assert run_go(whole, run_dir) == "2 blocks from router-0\n"


def run_go(program: str, run_dir: Path) -> str:
    """What a Go program says, built in a module of its own by README's commands."""
    page = (ROOT / "README.md").read_text()
    (commands,) = [block for block in blocks(page, "sh") if "go mod init" in block]
    module = Path(tempfile.mkdtemp(dir=run_dir))
    (module / "main.go").write_text(program)
    done = subprocess.run(
        ["bash", "-eu", "-c", commands],
        cwd=module, env={**os.environ, "KVXFER": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fleet(run_dir: Path) -> None:
    """The two lines of the fleet, on the loop-back interface and with ports of the kernel's choice."""
    _, first, other = serve_lines((ROOT / "README.md").read_text())
    daemons: list[subprocess.Popen[bytes]] = []
    infos: list[dict[str, Any]] = []

    def serve(line: str) -> None:
        base = run_dir / str(len(daemons))
        own = ["--state-dir", f"{base}/state", "--socket", f"{base}/k.sock", "--http", "127.0.0.1:0"]
        with (run_dir / f"log{len(daemons)}.txt").open("wb") as log:
            words = [*shlex.split(line, comments=True), *own]
            daemons.append(
                subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        until("the daemon", (base / "state" / "node.json").exists)
        infos.append(json.loads((base / "state" / "node.json").read_text()))

    try:
        serve(first.replace("eth0", "lo:0"))
        serve(other.replace("eth0", "lo:0").replace("nats://10.0.0.1:4222", infos[0]["nats_url"]))

        def together() -> bool:
            with kvxfer.connect(infos[1]["socket"]) as client:
                return set(client.status().nodes) == {"prefill-0", "decode-0"}

        until("both nodes to know each other", together)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0


PAGES = sorted(
    p.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "sdk/python/*.md", "examples/**/*.md")
    for p in ROOT.glob(pattern)
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    heads = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page} links to {link}"


def test_rooms_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    table = page.split("| room | subject |")[1].split("\n\n")[0]
    rooms = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(rooms) > 10
    for room in rooms:
        assert (ROOT / room).is_dir(), room
    named = {r.rstrip("/") for r in rooms}
    for doc in ROOT.glob("**/doc.go"):
        package = doc.parent.relative_to(ROOT).as_posix()
        if not package.startswith(("build/", "bin/")):
            assert any(package == r or package.startswith(f"{r}/") for r in named), f"no room for {package}"


def functions(package: str) -> set[str]:
    """The names of a Go package's functions."""
    return {
        name
        for file in (ROOT / package).glob("*.go")
        for name in re.findall(r"^func (?:\([^)]*\) )?(\w+)\(", file.read_text(), re.M)
    }


def python_tests() -> set[str]:
    """The tests and test files of this directory and of the one with the virtual machines."""
    found: set[str] = set()
    for where in (Path(__file__).parent, ROOT / "test/rdma"):
        for p in where.glob("test_*.py"):
            found |= {p.stem, *re.findall(r"^def (test_\w+)\(", p.read_text(), re.M)}
    return found


TEST = r"\b(?:Test|Fuzz|Benchmark)[A-Z]\w*"
"""A test's name in prose."""

PACKAGES = sorted(p.parent.relative_to(ROOT).as_posix() for p in ROOT.glob("**/doc.go"))


@pytest.mark.parametrize("package", PACKAGES)
def test_cited_tests_of_packages(package: str) -> None:
    text = re.sub(r"\n// *", " ", (ROOT / package / "doc.go").read_text())
    there = functions(package)
    # "natskv's TestX" is a test of the neighbour, or of the package above.
    for neighbour, name in re.findall(rf"(\w+)'s ({TEST})", text):
        above = (ROOT / package).parent
        beside = above if above.name == neighbour else above / neighbour
        there |= {name} & functions(beside.relative_to(ROOT).as_posix())
    missing = {name for name in re.findall(TEST, text) if name not in there}
    missing |= {name for name in re.findall(r"\btest_\w+", text) if name not in python_tests()}
    if package == "rdma":  # held by the conformance suite, whose tests stand in brackets
        suite = functions("rdma/fabrictest")
        cited = re.findall(r"\(((?:[A-Z]\w+, )*[A-Z]\w+)\)", text)
        assert len(cited) > 5
        missing |= {name for group in cited for name in group.split(", ") if f"test{name}" not in suite}
    assert not missing, f"{package}/doc.go cites tests that are not there"


def test_cited_tests_of_the_architecture() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = page.split("| invariant | held by |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(rows) > 5
    for row in rows:
        package = ""
        for path, name in re.findall(r"`([^`]+)`|\b([A-Z][a-z]+[A-Z]\w*)", row.split("|")[2]):
            if path:
                package = path
                assert (ROOT / package).is_dir(), row
            else:
                assert {name, f"test{name}"} & functions(package), f"{package} has no {name}"
