"""The metrics of two daemons, as Prometheus' own tools and docs/metrics.md have them."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import kvxfer
import pytest

from daemon import PATIENCE, ROOT, Daemon, until
from prometheus import Prometheus, promtool, tool
from transfers import LAYOUT, allocate, move

DOCS = (ROOT / "docs" / "metrics.md").read_text()
BLOCKS = 8
BYTES = BLOCKS * LAYOUT.block_bytes

Series = list[tuple[str, dict[str, str], float]]


def documented() -> dict[str, tuple[str, dict[str, set[str] | None]]]:
    """By the name on /metrics: the kind, and the values that each label may have; None: any."""
    codes = set(re.findall(r"^\| \d+ \| \[`(\w+)`", (ROOT / "docs" / "errors.md").read_text(), re.M))
    out: dict[str, tuple[str, dict[str, set[str] | None]]] = {}
    for row in DOCS.split("<!-- list -->")[1].split("<!-- /list -->")[0].strip().splitlines()[2:]:
        _, _, name, kind, _, attributes, _, _ = (cell.strip() for cell in row.split("|"))
        labels: dict[str, set[str] | None] = {}
        for one in attributes.split("; ") if attributes else []:
            key, values = one.split(": ", 1)
            listed = set(re.findall(r"`([^`]+)`", values))
            if "errors.md" in values:
                listed |= codes
            labels[key.strip("`")] = (
                None if key.strip("`") in ("version", "go_version", "device", "port") else listed
            )
        out[name.strip("`")] = (kind, labels)
    return out


def parse(page: str) -> tuple[dict[str, str], Series]:
    """The kinds of the families of kvxfer on a page, and their series."""
    kinds, series = {}, []
    for line in page.splitlines():
        if found := re.fullmatch(r"# TYPE (kvxfer_\w+) (\w+)", line):
            kinds[found[1]] = found[2]
        elif found := re.fullmatch(r"(kvxfer_\w+)(?:\{(.*)\})? (\S+)", line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
            series.append((found[1], labels, float(found[3])))
    return kinds, series


def page(d: Daemon, accept: str = "text/plain") -> tuple[str, str]:
    """The type and the text of a daemon's page."""
    request = urllib.request.Request(f"http://{d.info['http_addr']}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE) as r:
        return r.headers["Content-Type"], r.read().decode()


@pytest.fixture
def prometheus(tmp_path: Path, pair: tuple[Daemon, Daemon]) -> Iterator[Prometheus]:
    """A real server that scrapes both daemons."""
    tool("promtool")
    run = tmp_path / "prometheus"
    run.mkdir()
    server = Prometheus(run, [d.info["http_addr"] for d in pair])
    try:
        yield server.start()
    finally:
        server.kill()


def test_metrics(
    pair: tuple[Daemon, Daemon], prometheus: Prometheus, rng: random.Random, tmp_path: Path
) -> None:
    prefill, decode = pair
    with prefill.connect() as near, decode.connect() as far:
        source, target = allocate(near, "source"), allocate(far, "target")
        provider = move(source, target, rng, BLOCKS).provider
        with source.lease([0, 1], mode="read", ttl=PATIENCE) as offer:
            held = f'kvxfer_held_blocks{{instance="{prefill.info["http_addr"]}"}}'
            until("the held blocks to be scraped", lambda: prometheus.value(held) == 2)
            target.read([4, 5], source=offer.ticket, timeout=PATIENCE).wait()
        revoked = target.lease([9], ttl=PATIENCE)
        with pytest.raises(kvxfer.BlocksBusy):
            target.lease([9])
        revoked.revoke().wait(PATIENCE)  # which only begins it; a BIND that is faster would be taken
        with pytest.raises(kvxfer.LeaseRevoked):
            source.write([9], to=revoked.ticket, timeout=PATIENCE).wait()

        shown(pair)
        # Blocks of the pull and of the revoked lease were perhaps among those of the push.
        committed = target.block_states().committed
        scraped(prometheus, prefill, decode, provider, committed)
    questions(prometheus)
    alerts(tmp_path)


def shown(pair: tuple[Daemon, Daemon]) -> None:
    """Prometheus' checker likes the pages; what is on them is the documented list, and nothing else."""
    want, values = documented(), 0
    kinds: dict[str, str] = {}
    for d in pair:
        _, text = page(d)
        promtool("check", "metrics", text=text)
        more, series = parse(text)
        kinds |= more
        for name, labels, _ in series:
            family = name if name in more else re.sub("_(bucket|sum|count)$", "", name)
            labels.pop("le", None)
            assert labels.keys() == want[family][1].keys(), (name, labels)
            for label, value in labels.items():
                allowed = want[family][1][label]
                assert allowed is None or value in allowed, (name, label, value)
        values += len(series)
        kind, text = page(d, "application/openmetrics-text;version=1.0.0")
        assert kind.startswith("application/openmetrics-text; version=1.0.0"), kind
        assert text.endswith("# EOF\n")
    # A host without RDMA devices has no row of theirs.
    assert kinds == {
        name: kind for name, (kind, _) in want.items() if name in kinds or "_rdma_port" not in name
    }
    assert values < 2 * 600


def scraped(prometheus: Prometheus, prefill: Daemon, decode: Daemon, provider: str, committed: int) -> None:
    """What the server says of the transfers is what was moved."""
    at = {name: f'instance="{d.info["http_addr"]}"' for name, d in (("near", prefill), ("far", decode))}
    for expression, value in {
        "sum(up)": 2,
        f'kvxfer_payload_bytes_total{{{at["near"]},direction="sent",provider="{provider}"}}': BYTES
        + 2 * LAYOUT.block_bytes,  # the push, and what the pull has read
        f'kvxfer_payload_bytes_total{{{at["far"]},direction="received",provider="{provider}"}}': BYTES
        + 2 * LAYOUT.block_bytes,
        f'sum(kvxfer_payload_bytes_total{{{at["far"]},direction="sent"}})': 0,
        f'kvxfer_transfers_total{{{at["near"]},kind="push",result="DONE",provider="{provider}"}}': 1,
        f'kvxfer_transfers_total{{{at["near"]},kind="push",result="LeaseRevoked",provider="{provider}"}}': 1,
        f'kvxfer_transfers_total{{{at["far"]},kind="pull",result="DONE",provider="{provider}"}}': 1,
        f'kvxfer_transfer_duration_seconds_count{{{at["near"]},kind="push",outcome="done"}}': 1,
        f'kvxfer_transfer_first_byte_seconds_count{{{at["near"]},kind="push"}}': 1,
        f'kvxfer_leases_ended_total{{{at["far"]},kind="write",result="DONE"}}': 1,
        f'kvxfer_leases_ended_total{{{at["far"]},kind="write",result="LeaseRevoked"}}': 1,
        f'kvxfer_leases_ended_total{{{at["near"]},kind="read",result="DONE"}}': 1,
        f'kvxfer_fence_duration_seconds_count{{{at["far"]},outcome="done"}}': 1,
        f'kvxfer_errors_total{{{at["far"]},where="peer",code="LeaseRevoked"}}': 1,
        f'kvxfer_errors_total{{{at["far"]},where="request",code="BlocksBusy"}}': 1,
        f"kvxfer_store_committed_blocks{{{at['far']}}}": committed,
        f"kvxfer_clients{{{at['far']}}}": 1,
        f'kvxfer_links{{{at["near"]},direction="out",provider="{provider}"}}': 1,
        "sum(kvxfer_held_blocks) + sum(kvxfer_leases) + sum(kvxfer_transfers_running)": 0,
        "sum(kvxfer_operations) + sum(kvxfer_fences_pending) + sum(kvxfer_quarantined_memory_bytes)": 0,
        "max(kvxfer_registry_nodes)": 2,
        "min(kvxfer_registry_connected) * min(kvxfer_ready)": 1,
        "max(kvxfer_registry_heartbeat_age_seconds) < bool 60": 1,
    }.items():
        until(
            f"{expression} to be {value}, last {prometheus.query(expression)}",
            lambda e=expression, v=value: prometheus.value(e) == v,  # type: ignore[misc]
            pause=0.1,
        )


def questions(prometheus: Prometheus) -> None:
    """The queries of the page can be asked."""
    asked = re.findall(r"```promql\n(.*?)```", DOCS, re.S)
    assert len(asked) >= 5
    for expression in asked:
        prometheus.query(expression)
    assert prometheus.query(asked[0].replace("[1m]", "[1h]")), "the first one has an answer here"


def alerts(directory: Path) -> None:
    """The alerts and the scrape configuration of the page are ones that Prometheus takes."""
    config, rules = re.findall(r"```yaml\n(.*?)```", DOCS, re.S)
    for name, text, check in (("rules.yml", rules, "rules"), ("scrape.yml", config, "config")):
        path = directory / name
        path.write_text(text)
        promtool("check", check, str(path))
    recorded = [
        {"record": f"q:{i}", "expr": expression}
        for i, expression in enumerate(re.findall(r"```promql\n(.*?)```", DOCS, re.S))
    ]
    path = directory / "questions.yml"
    path.write_text(json.dumps({"groups": [{"name": "q", "rules": recorded}]}))
    promtool("check", "rules", str(path))
