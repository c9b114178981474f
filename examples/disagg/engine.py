"""What the prefill and the decode process share: model, cache and their talk with the router.

The router (run.py) and an engine exchange one JSON object a line over the engine's standard input and output,
as a serving engine's front end would over HTTP.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import kvxfer

from smollm.model import Llama
from smollm.paged import Order, PagedCache
from smollm.weights import Checkpoint, find_gguf

MODEL = "SmolLM2-135M-Instruct"


def tell(**message: Any) -> None:
    """Send one message to the router."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    """Wait for one message of the router."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the router is gone")
    message: dict[str, Any] = json.loads(line)
    return message


@dataclass(frozen=True)
class Engine:
    """A model, and a KV cache in memory that the node's daemon shares."""

    client: kvxfer.Client
    model: Llama
    cache: kvxfer.Cache
    paged: PagedCache


def start(role: str) -> Engine:
    """Connect to the daemon, allocate the cache, load the model; the arguments come from the command line."""
    ap = argparse.ArgumentParser()
    ap.add_argument("--socket", required=True)
    ap.add_argument("--blocks", type=int, required=True)
    ap.add_argument("--block-tokens", type=int, required=True)
    ap.add_argument("--order", choices=["HND", "NHD"], required=True)
    args = ap.parse_args()
    order: Order = args.order

    checkpoint = Checkpoint(find_gguf())
    config = checkpoint.config()
    client = kvxfer.connect(args.socket, process=role)
    cache = client.allocate_cache(
        role,
        model=MODEL,
        layout=kvxfer.Layout(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype="float32",
            block_tokens=args.block_tokens,
            order=order,
        ),
        num_blocks=args.blocks,
    )
    engine = Engine(client, Llama(checkpoint.weights()), cache, PagedCache(cache.layer, order))
    tell(ready=True, layers=config.layers)
    return engine
