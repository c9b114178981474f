"""Forward pass of a Llama whose K and V lie in a paged cache, split the way disaggregated serving splits it.

``prefill`` runs a whole prompt and fills the cache layer by layer. ``decode`` continues from a cache alone:
it is given the last prompt token and its position, never the prompt's activations.

Why decode can find the first new token: what follows position p depends on the hidden state of position p,
and in every layer that state sees earlier positions only through their K and V. Both are in the cache, so
running the last prompt position alone, its query against the cached K and V, is the same computation that
prefill did for that row. K and V of the last position are in the cache as well and are used from there,
not recomputed, so decode is a function of (token, position, cache) and nothing else: two processes on one
machine, with the same number of BLAS threads and the same cache bytes, get the same bits.

``prefill`` multiplies matrices where ``decode`` multiplies vectors, and BLAS sums those in different orders,
so their logits for the last prompt position agree to rounding (SmolLM2: some 1e-5), not to the bit. Whether
that can change the greedy token is told by ``Step.margin``, the distance of the two best logits: it must be
well above the rounding. For bit-equal tokens compare decode with decode: the reference of a two-process run
is ``prefill`` and then ``decode`` in one process, over ``local_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .paged import PagedCache, Request
from .weights import Config, Weights

Array = NDArray[np.float32]

_QUERY_ROWS = 128
"""Queries whose scores are computed at once in prefill. It bounds the memory for scores to heads x 128 x
tokens, and skips most of what the causal mask would discard."""


@dataclass(frozen=True)
class Step:
    """What the model says comes next."""

    logits: Array  # (vocab,)

    @property
    def token(self) -> int:
        """The greedy choice; the lowest id where several are equal."""
        return int(self.logits.argmax())

    @property
    def margin(self) -> float:
        """Best logit minus second best."""
        second, best = np.partition(self.logits, -2)[-2:]
        return float(best - second)


class Llama:
    """A Llama over ``weights``. Holds no state between calls; the cache is the caller's."""

    def __init__(self, weights: Weights) -> None:
        self.config: Config = weights.config
        self.weights = weights
        half = np.arange(0, self.config.head_dim, 2, dtype=np.float64)
        self._frequencies = self.config.rope_base ** (-half / self.config.head_dim)

    def prefill(
        self,
        tokens: Sequence[int],
        cache: PagedCache,
        blocks: Sequence[int],
        on_layer: Callable[[int], None] | None = None,
    ) -> Step:
        """Run a prompt; K and V of position i go to row i of the block table.

        ``on_layer(l)`` is called once per layer, in order, as soon as layer l's K and V of all tokens are in
        the cache: before that layer's attention and MLP, so that a transfer runs while they are computed.
        Returns what follows the last token. ValueError where prompt, cache and blocks do not fit.
        """
        n, config = len(tokens), self.config
        if not 1 <= n <= config.context:
            raise ValueError(f"tokens: {n} is outside 1..{config.context}")
        request = Request(config, cache, blocks, n)
        rotary = self._rotary(0, n)
        x = self._embed(tokens)
        for layer, w in enumerate(self.weights.layers):
            qkv = self._norm(x, w.attn_norm) @ w.qkv
            q, k, v = self._split(qkv)
            k = _rotate(k, *rotary)
            request.write(layer, 0, k, v)
            if on_layer is not None:
                on_layer(layer)
            x += self._causal_attention(_rotate(q, *rotary), k, v) @ w.attn_out
            x += self._mlp(x, w.ffn_norm, w.gate_up, w.down)
        return self._head(x[-1])

    def decode(
        self,
        token: int,
        position: int,
        cache: PagedCache,
        blocks: Sequence[int],
        count: int,
        before_layer: Callable[[int], None] | None = None,
    ) -> Iterator[Step]:
        """Continue greedily for ``count`` tokens, one ``Step`` each, computed as the caller asks for it.

        ``token`` is the one at ``position`` (0-based), the last whose K and V are in the cache; positions 0
        to ``position`` are read, never written. The K and V of each new token except the last are appended,
        so ``blocks`` needs room for ``position + count`` tokens. Generation does not stop at an end token.
        ``before_layer(l)`` is called during the first step before layer l is first read: the place to wait
        for its arrival. ValueError where arguments do not fit, at the call and not at the first step.
        """
        if count < 1:
            raise ValueError(f"count: {count} is below 1")
        if not 0 <= position <= self.config.context - count:
            raise ValueError(f"position: {position} is outside 0..{self.config.context - count}")
        request = Request(self.config, cache, blocks, position + count)
        self._embed([token])
        return self._continue(token, position, request, count, before_layer)

    def _continue(
        self,
        token: int,
        position: int,
        request: Request,
        count: int,
        before_layer: Callable[[int], None] | None,
    ) -> Iterator[Step]:
        step = self._step(token, position, request, append=False, before_layer=before_layer)
        yield step
        for p in range(position + 1, position + count):
            step = self._step(step.token, p, request, append=True, before_layer=None)
            yield step

    def _step(
        self,
        token: int,
        position: int,
        request: Request,
        *,
        append: bool,
        before_layer: Callable[[int], None] | None,
    ) -> Step:
        """Run one position; with ``append`` its K and V are written first, else the cache has them."""
        config = self.config
        rotary = self._rotary(position, position + 1)
        width = config.heads * config.head_dim
        x = self._embed([token])
        for layer, w in enumerate(self.weights.layers):
            if before_layer is not None:
                before_layer(layer)
            q, new_k, new_v = self._split(self._norm(x, w.attn_norm) @ w.qkv)
            if append:
                request.write(layer, position, _rotate(new_k, *rotary), new_v)
            k, v = request.read(layer, position + 1)
            q = _rotate(q, *rotary).reshape(config.kv_heads, -1, config.head_dim)
            x += self._attend(q, k, v).reshape(1, width) @ w.attn_out
            x += self._mlp(x, w.ffn_norm, w.gate_up, w.down)
        return self._head(x[-1])

    def _embed(self, tokens: Sequence[int]) -> Array:
        ids = np.asarray(tokens)
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= self.config.vocab:
            raise ValueError(f"tokens: an id is no integer in 0..{self.config.vocab - 1}")
        x: Array = self.weights.embed[ids]
        return x

    def _norm(self, x: Array, weight: Array) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        out: Array = x * (weight / np.sqrt(mean_square + np.float32(self.config.eps)))
        return out

    def _rotary(self, start: int, end: int) -> tuple[Array, Array]:
        """Cosines and sines of positions ``start`` to ``end`` - 1, both (tokens, head_dim / 2)."""
        angles = np.arange(start, end)[:, None] * self._frequencies
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _split(self, qkv: Array) -> tuple[Array, Array, Array]:
        """(tokens, all heads) to Q (heads, tokens, head_dim), K and V (kv_heads, tokens, head_dim)."""
        c = self.config
        heads = qkv.reshape(len(qkv), -1, c.head_dim).swapaxes(0, 1)
        return heads[: c.heads], heads[c.heads : c.heads + c.kv_heads], heads[c.heads + c.kv_heads :]

    def _causal_attention(self, q: Array, k: Array, v: Array) -> Array:
        """Each query over its own and earlier positions: (tokens, heads * head_dim)."""
        c, n = self.config, q.shape[1]
        group = c.heads // c.kv_heads
        out = np.empty((n, c.heads, c.head_dim), np.float32)
        for start in range(0, n, _QUERY_ROWS):
            end = min(n, start + _QUERY_ROWS)
            rows = end - start
            queries = q[:, start:end].reshape(c.kv_heads, group * rows, c.head_dim)
            future = np.arange(end) > np.arange(start, end)[:, None]
            mask = np.where(np.tile(future, (group, 1)), np.float32(-np.inf), np.float32(0))
            got = self._attend(queries, k[:, :end], v[:, :end], mask)
            out[start:end] = got.reshape(c.heads, rows, c.head_dim).swapaxes(0, 1)
        return out.reshape(n, -1)

    def _attend(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        """Softmax attention per KV head: q (kv_heads, queries, d), k and v (kv_heads, keys, d)."""
        scores = (q * np.float32(self.config.head_dim**-0.5)) @ k.swapaxes(1, 2)
        if mask is not None:
            scores += mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        attended: Array = scores @ v
        return attended

    def _mlp(self, x: Array, norm: Array, gate_up: Array, down: Array) -> Array:
        both = self._norm(x, norm) @ gate_up
        gate, up = both[:, : self.config.ffn], both[:, self.config.ffn :]
        # x * sigmoid(x) by tanh, which cannot overflow where exp(-x) does.
        sigmoid = np.tanh(gate * np.float32(0.5))
        sigmoid += np.float32(1)
        sigmoid *= np.float32(0.5)
        sigmoid *= gate
        sigmoid *= up
        out: Array = sigmoid @ down
        return out

    def _head(self, x: Array) -> Step:
        return Step(self.weights.head @ self._norm(x, self.weights.norm))


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of (heads, tokens, head_dim); a head's two halves are the pairs' two numbers."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out = np.empty(x.shape, np.float32)
    out[..., :half] = a * cos - b * sin
    out[..., half:] = a * sin + b * cos
    return out
