"""Vectors that this SDK and the Go SDK are held to alike: sdk/testdata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kvxfer

_DATA = Path(__file__).parents[2] / "testdata"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((_DATA / name).read_text())
    assert found
    return found


def test_chain_keys() -> None:
    for v in vectors("chain_keys.json"):
        tokens = v.get("token_ids") or [i * i % 50000 for i in range(v.get("squares_mod_50000", 0))]
        keys = kvxfer.chain_keys(tokens, v["block_tokens"], bytes.fromhex(v["seed"]))
        assert [k.hex() for k in keys] == v["keys"]


def test_layer_shapes() -> None:
    for v in vectors("layer_shapes.json"):
        layout = kvxfer.Layout(**v["layout"])
        assert list(layout.layer_shape(v["num_blocks"])) == v["layer_shape"]
        got = (layout.planes, layout.piece_bytes, layout.block_bytes)
        assert got == (v["planes"], v["piece_bytes"], v["block_bytes"])
