"""docs/quickstart/operator.md: its settings start a daemon, and its commands say what the page says."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import tarfile
from pathlib import Path

from certificates import Certificates
from conftest import Attach, Start
from contents import allocate
from daemon import PATIENCE, PLAIN_BINARY, ROOT, until
from test_readme import blocks

PAGE = (ROOT / "docs" / "quickstart" / "operator.md").read_text()
NODE, NEIGHBOUR = "decode-3", "prefill-0"


def settings(directory: Path, nats_url: str, certificates: Certificates) -> Path:
    """The page's file, with addresses and files that are there."""
    (text,) = blocks(PAGE, "json")
    config = json.loads(text)
    assert config["node"] == NODE
    ours = certificates.folder(f"ours/{NODE}")
    config |= {"listen": "lo:0", "nats": nats_url, "nats-token-file": str(directory / "token")}
    config |= {"tls-cert": f"{ours}/node.crt", "tls-key": f"{ours}/node.key", "tls-ca": f"{ours}/ca.crt"}
    path = directory / "kvxfer.json"
    path.write_text(json.dumps(config))
    return path


def test_operator_quick_start(daemon: Start, attach: Attach, tmp_path: Path) -> None:
    """Every command of the page, in its order, on a node that the page's file and unit describe."""
    certificates = Certificates(tmp_path / "c", f"ours/{NODE}={NODE}", f"ours/{NEIGHBOUR}={NEIGHBOUR}")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    near = daemon(
        NEIGHBOUR, *certificates.flags(f"ours/{NEIGHBOUR}"),
        "--nats-listen", "127.0.0.1:0", "--nats-token-file", str(tmp_path / "token"),
    )  # fmt: skip
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    (text,) = blocks(PAGE, "ini")
    unit.read_string(text)
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[1:] == ["serve", "--config", "/etc/kvxfer/kvxfer.json"]
    config = settings(tmp_path, near.info["nats_url"], certificates)
    # Where the harness has a flag of its own the file must not be asked.
    far = daemon(NODE, "--config", str(config), "--listen", "lo:0")

    client, other = attach(near), attach(far)
    until("each to know the other", lambda: len(client.status().nodes) == len(other.status().nodes) == 2)
    source, target = allocate(client, "source"), allocate(other, "target")
    lease = target.lease([1, 2], ttl=PATIENCE)
    push = source.write([3, 4], to=lease.ticket, timeout=PATIENCE)
    push.wait()
    lease.wait()

    commands = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    assert len(commands) == 11
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kvxfer").symlink_to(PLAIN_BINARY)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    shown: dict[str, str] = {}
    for line in commands:
        # The host's doctor looks at the settings of the node that it is asked about.
        d = far if line.startswith("kvxfer doctor") and "--peer" not in line else near
        more = {"KVXFER_CONFIG": str(config)} if d is far else {}
        done = subprocess.run(
            ["bash", "-c", re.sub(r"\bID\b", push.transfer_id, line)],
            cwd=tmp_path, env={**env, **more, "KVXFER_SOCKET": str(d.socket)},
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        shown[line.split("#")[0].strip()] = done.stdout
    assert "valid until" in shown["kvxfer doctor"]
    assert f"node {NODE}" in shown["kvxfer doctor"]
    assert len(re.findall(r"^ok .* by decode-3", shown["kvxfer doctor --peer decode-3"], re.M)) == 4
    assert NODE in shown["kvxfer nodes"]
    assert "target" in shown["kvxfer caches"]
    assert push.transfer_id[:12] in shown["kvxfer transfers --all"]
    assert "DONE" in shown["kvxfer transfers show ID"]
    assert "batch" in shown["kvxfer trace show ID"]
    assert "debug (was info)" in shown["kvxfer log-level debug"]
    assert "idle" in shown["kvxfer drain --timeout 5m"]
    (bundle,) = tmp_path.glob("kvxfer-support-*.tar.gz")
    with tarfile.open(bundle) as tar:
        names = {Path(m.name).name for m in tar.getmembers()}
    assert {"nodes.json", "caches.json", "leases.json", "transfers.json", "metrics.txt"} <= names
    assert "missing.json" not in names
