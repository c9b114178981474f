"""The forward pass against a plain dense one, over caches of every order and block size.

The Llama here is tiny and random, so the tests need no download. Seeds come from KVXFER_SEED where it is set.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from smollm.model import Llama, Step
from smollm.paged import Order, PagedCache, Request, blocks_for, local_cache
from smollm.weights import Config, LayerWeights, Weights

CONFIG = Config(
    layers=3,
    hidden=48,
    ffn=80,
    heads=6,
    kv_heads=2,
    head_dim=8,
    vocab=97,
    context=256,
    rope_base=1e4,
    eps=1e-5,
)
PROMPT = 150  # more than the rows of queries that prefill computes at once
NEW = 12
LAYOUTS: list[tuple[Order, int]] = [
    ("HND", 16),
    ("HND", 7),
    ("HND", 1),
    ("NHD", 16),
    ("NHD", 32),
    ("NHD", 200),
]


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(os.environ.get("KVXFER_SEED", "20261121"))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def weights(rng: np.random.Generator) -> Weights:
    def matrix(*shape: int) -> NDArray[np.float32]:
        values: NDArray[np.float64] = rng.standard_normal(shape) * shape[0] ** -0.5
        return values.astype(np.float32)

    def vector() -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, CONFIG.hidden).astype(np.float32)

    c, width = CONFIG, CONFIG.heads * CONFIG.head_dim
    layers = [
        LayerWeights(
            attn_norm=vector(),
            qkv=matrix(c.hidden, width + 2 * c.kv_heads * c.head_dim),
            attn_out=matrix(width, c.hidden),
            ffn_norm=vector(),
            gate_up=matrix(c.hidden, 2 * c.ffn),
            down=matrix(c.ffn, c.hidden),
        )
        for _ in range(c.layers)
    ]
    return Weights(c, matrix(c.vocab, c.hidden), layers, vector(), matrix(c.vocab, c.hidden))


@pytest.fixture
def prompt(rng: np.random.Generator) -> list[int]:
    return [int(t) for t in rng.integers(0, CONFIG.vocab, PROMPT)]


def permuted(rng: np.random.Generator, block_tokens: int, spare: int = 5) -> tuple[int, list[int]]:
    """The number of blocks in a cache with ``spare`` unused ones, and a block table in random order."""
    need = blocks_for(PROMPT + NEW, block_tokens)
    return need + spare, [int(b) for b in rng.permutation(need + spare)[:need]]


def dense_logits(weights: Weights, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Logits after every position, in float64, one head and one position at a time: (tokens, vocab)."""
    c = weights.config

    def norm(x: NDArray[np.float64], w: NDArray[np.float32]) -> NDArray[np.float64]:
        out: NDArray[np.float64] = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + c.eps) * w
        return out

    def rotate(x: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        turned = np.empty_like(x)
        for i in range(c.head_dim // 2):
            angle = position * c.rope_base ** (-2 * i / c.head_dim)
            pair = complex(x[i], x[i + c.head_dim // 2]) * complex(np.cos(angle), np.sin(angle))
            turned[i], turned[i + c.head_dim // 2] = pair.real, pair.imag
        return turned

    x = weights.embed[list(tokens)].astype(np.float64)
    for w in weights.layers:
        rows = (norm(x, w.attn_norm) @ w.qkv).reshape(len(tokens), -1, c.head_dim)
        attended = np.zeros((len(tokens), c.heads, c.head_dim))
        for head in range(c.heads):
            key_head = c.heads + head * c.kv_heads // c.heads
            keys = np.array([rotate(row[key_head], p) for p, row in enumerate(rows)])
            for p in range(len(tokens)):
                scores = keys[: p + 1] @ rotate(rows[p, head], p) / np.sqrt(c.head_dim)
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                attended[p, head] = chances @ rows[: p + 1, key_head + c.kv_heads]
        x = x + attended.reshape(len(tokens), -1) @ w.attn_out
        gate, up = np.split(norm(x, w.ffn_norm) @ w.gate_up, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w.down
    logits: NDArray[np.float64] = norm(x, weights.norm) @ weights.head.T
    return logits


def run(
    model: Llama, prompt: Sequence[int], cache: PagedCache, blocks: Sequence[int], count: int = NEW
) -> tuple[Step, list[Step]]:
    first = model.prefill(prompt, cache, blocks)
    return first, list(model.decode(prompt[-1], len(prompt) - 1, cache, blocks, count))


@pytest.mark.parametrize(("order", "block_tokens"), LAYOUTS)
def test_paged_equals_dense(
    order: Order, block_tokens: int, weights: Weights, prompt: list[int], rng: np.random.Generator
) -> None:
    num_blocks, blocks = permuted(rng, block_tokens)
    cache = local_cache(CONFIG, num_blocks, block_tokens, order)
    first, steps = run(Llama(weights), prompt, cache, blocks)

    tokens = [*prompt, *(s.token for s in steps[:-1])]
    want = dense_logits(weights, tokens)[PROMPT - 1 :]
    np.testing.assert_allclose(first.logits, want[0], atol=1e-3)
    np.testing.assert_allclose([s.logits for s in steps], want, atol=1e-3)
    assert [s.token for s in steps] == want.argmax(axis=1).tolist()


def test_cache_layout_changes_no_bit(weights: Weights, prompt: list[int], rng: np.random.Generator) -> None:
    model = Llama(weights)
    seen = set()
    for order, block_tokens in LAYOUTS:
        num_blocks, blocks = permuted(rng, block_tokens)
        first, steps = run(model, prompt, local_cache(CONFIG, num_blocks, block_tokens, order), blocks)
        seen.add(b"".join(s.logits.tobytes() for s in (first, *steps)))
    assert len(seen) == 1


def test_decode_needs_only_the_cache(weights: Weights, prompt: list[int], rng: np.random.Generator) -> None:
    """Another model object, other blocks among garbage, the prompt's K and V copied: the same bits."""
    size = 16
    source, blocks = local_cache(CONFIG, 20, size), list(range(blocks_for(PROMPT + NEW, size)))
    _, want = run(Llama(weights), prompt, source, blocks)

    prefilled = local_cache(CONFIG, 20, size)
    Llama(weights).prefill(prompt, prefilled, blocks)
    num_blocks, elsewhere = permuted(rng, size)
    target = local_cache(CONFIG, num_blocks, size)
    for layer in range(CONFIG.layers):
        target.layer(layer)[:] = np.nan
        for a, b in zip(blocks[: blocks_for(PROMPT, size)], elsewhere, strict=False):
            target.layer(layer)[:, b] = prefilled.layer(layer)[:, a]
    got = list(Llama(weights).decode(prompt[-1], PROMPT - 1, target, elsewhere, NEW))
    assert [s.logits.tobytes() for s in got] == [s.logits.tobytes() for s in want]


def test_recomputed_last_position_agrees_with_prefill(
    weights: Weights, prompt: list[int], rng: np.random.Generator
) -> None:
    num_blocks, blocks = permuted(rng, 16)
    first, steps = run(Llama(weights), prompt, local_cache(CONFIG, num_blocks, 16), blocks, 1)
    difference = float(np.abs(first.logits - steps[0].logits).max())
    print(f"margin {first.margin:.4f}, largest difference {difference:.2e}")
    assert difference < 1e-4
    assert first.margin > 2 * difference
    assert first.token == steps[0].token


def test_decode_writes_only_behind_the_prompt(
    weights: Weights, prompt: list[int], rng: np.random.Generator
) -> None:
    num_blocks, blocks = permuted(rng, 16)
    cache = local_cache(CONFIG, num_blocks, 16)
    model = Llama(weights)
    model.prefill(prompt, cache, blocks)
    before = [cache.layer(layer).copy() for layer in range(CONFIG.layers)]
    list(model.decode(prompt[-1], PROMPT - 1, cache, blocks, NEW))
    last = PROMPT + NEW - 1
    for layer in range(CONFIG.layers):
        changed = (cache.layer(layer) != before[layer]).any(axis=(0, 2, 4))
        want = np.zeros_like(changed)
        for p in range(PROMPT, last):
            want[blocks[p // 16], p % 16] = True
        np.testing.assert_array_equal(changed, want)


def test_callbacks_run_in_layer_order(weights: Weights, prompt: list[int]) -> None:
    """A reported layer is whole, the layers behind it untouched; decode asks before it reads."""
    blocks, cache = [2, 0, 1], local_cache(CONFIG, 3, 64)
    model = Llama(weights)
    model.prefill(prompt, cache, blocks)
    whole = [cache.layer(layer).copy() for layer in range(CONFIG.layers)]

    other, reported = local_cache(CONFIG, 3, 64), list[int]()

    def on_layer(layer: int) -> None:
        reported.append(layer)
        np.testing.assert_array_equal(other.layer(layer), whole[layer])
        for later in range(layer + 1, CONFIG.layers):
            assert not other.layer(later).any()

    model.prefill(prompt, other, blocks, on_layer=on_layer)
    assert reported == list(range(CONFIG.layers))

    late, awaited = local_cache(CONFIG, 3, 64), list[int]()

    def before_layer(layer: int) -> None:
        awaited.append(layer)
        late.layer(layer)[:] = whole[layer]

    want = list(model.decode(prompt[-1], PROMPT - 1, cache, blocks, 3))
    got = list(model.decode(prompt[-1], PROMPT - 1, late, blocks, 3, before_layer=before_layer))
    assert awaited == list(range(CONFIG.layers))
    assert [s.logits.tobytes() for s in got] == [s.logits.tobytes() for s in want]


def test_request_round_trip(rng: np.random.Generator) -> None:
    """Random cuts of random length land where the block table says and come back."""
    for order, block_tokens in LAYOUTS:
        num_blocks, blocks = permuted(rng, block_tokens)
        cache = local_cache(CONFIG, num_blocks, block_tokens, order)
        request = Request(CONFIG, cache, blocks, PROMPT)
        k, v = rng.standard_normal((2, CONFIG.kv_heads, PROMPT, CONFIG.head_dim)).astype(np.float32)
        cuts = sorted({0, PROMPT, *(int(c) for c in rng.integers(0, PROMPT, 6))})
        for start, end in itertools.pairwise(cuts):
            request.write(1, start, k[:, start:end], v[:, start:end])
        for end in (1, block_tokens, PROMPT):
            got_k, got_v = request.read(1, min(end, PROMPT))
            np.testing.assert_array_equal(got_k, k[:, :end])
            np.testing.assert_array_equal(got_v, v[:, :end])
        p = int(rng.integers(PROMPT))
        block = cache.layer(1)[:, blocks[p // block_tokens]]
        row = block[:, :, p % block_tokens] if order == "HND" else block[:, p % block_tokens]
        np.testing.assert_array_equal(row, [k[:, p], v[:, p]])


def test_bad_arguments_are_named(weights: Weights) -> None:
    model, cache = Llama(weights), local_cache(CONFIG, 8, 16)
    with pytest.raises(ValueError, match=r"^tokens: 0 is outside 1\.\.256"):
        model.prefill([], cache, [0])
    with pytest.raises(ValueError, match=r"^tokens: an id is no integer in 0\.\.96"):
        model.prefill([97], cache, [0])
    with pytest.raises(ValueError, match=r"^blocks: room for 16 tokens, 17 needed"):
        model.prefill([1] * 17, cache, [0])
    with pytest.raises(ValueError, match=r"^blocks: id 8 is outside 0\.\.7"):
        model.prefill([1], cache, [8])
    with pytest.raises(ValueError, match=r"^blocks: an id occurs twice"):
        model.prefill([1], cache, [3, 3])
    with pytest.raises(ValueError, match=r"16 KV heads of 8 in order NHD, the model has 2 of 8"):
        model.prefill([1], PagedCache(cache.layer, "NHD"), [0])
    with pytest.raises(ValueError, match=r"^position: 255 is outside 0\.\.254"):
        model.decode(1, 255, cache, [0], 2)
    with pytest.raises(ValueError, match=r"^count: 0 is below 1"):
        model.decode(1, 0, cache, [0], 0)
