"""Content keys: what blocks hold, named by bytes that the engine chooses, and who holds them."""

from __future__ import annotations

import hashlib
import operator
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from . import _wire as wire
from ._arguments import check_index
from ._blocks import _numpy
from ._faults import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

#: Keys of equal length, 1..255 bytes each: a sequence of bytes, or a numpy array of shape (N, K) of uint8.
Keys: TypeAlias = Union[Sequence[bytes], "np.ndarray[Any, Any]"]
#: Token ids, 0..2**32-1: a sequence of ints, an array.array or a one-dimensional numpy array of any integer
#: type.
TokenIds: TypeAlias = Union[Sequence[int], "array[int]", "np.ndarray[Any, Any]"]

MAX_KEYS = 65536
_MAX_KEY = 255


@dataclass(frozen=True)
class Holder:
    """A cache that holds the first blocks of a list of keys, from :meth:`Client.lookup`.

    Attributes:
        node: its node.
        epoch: the incarnation of that node's daemon, 32 hex digits.
        addr: the node's peer port, host:port.
        cache: the cache's name.
        blocks: how many keys of the list's beginning it has.
    """

    node: str
    epoch: str
    addr: str
    cache: str
    blocks: int


@dataclass(frozen=True)
class Lookup:
    """Who holds the beginning of a list of keys.

    Attributes:
        prefix: the most keys, from the first on, that one holder has; 0: nobody has the first.
        holders: the holders of at least one block, the longest prefix first.
        unasked: nodes that did not answer in time; what they hold is unknown.
    """

    prefix: int
    holders: tuple[Holder, ...]
    unasked: tuple[str, ...]


def chain_keys(token_ids: TokenIds, block_tokens: int, seed: bytes = b"") -> list[bytes]:
    """A key for each whole block of tokens, which names its tokens and all before them.

    The chain: ``parent = SHA-256(seed)``; then for each block ``key = SHA-256(parent + tokens)``, where
    tokens are the block's ids as little-endian 32-bit unsigned integers, 4 bytes each with nothing between,
    and ``parent = key``. So two sequences share a block's key exactly if they share the seed, block_tokens
    and every token up to that block's end.

    Args:
        token_ids: ids, 0..2**32-1. A last block that is not full has no key: its contents will change.
        block_tokens: tokens in a block, 1..4096, as in the layout.
        seed: what else the contents depend on (a tenant's salt, an adapter, images); any bytes. Model,
            revision, compat and layout need not go in: lookup compares them itself.

    Returns:
        ``len(token_ids) // block_tokens`` keys of 32 bytes.

    Raises:
        InvalidArgument: names the field, and the index of a wrong id.
    """
    op = "chain_keys"
    size = 4 * check_index(op, "block_tokens", block_tokens, 1, 1 << 12)
    if not isinstance(seed, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"a {type(seed).__name__}, allowed bytes", op=op, field="seed")
    tokens = memoryview(_pack_tokens(op, token_ids))
    parent = hashlib.sha256(seed).digest()
    keys = []
    for at in range(0, len(tokens) - size + 1, size):
        h = hashlib.sha256(parent)
        h.update(tokens[at : at + size])
        parent = h.digest()
        keys.append(parent)
    return keys


def _pack_tokens(op: str, token_ids: Any) -> bytes:
    numpy = _numpy()
    if numpy is not None and isinstance(token_ids, numpy.ndarray):
        if (token_ids.dtype.kind not in "iu" and token_ids.size) or token_ids.ndim != 1:
            raise InvalidArgument(
                f"an array of {token_ids.dtype} {token_ids.shape}, allowed integers (N,)",
                op=op,
                field="token_ids",
            )
        wrong = (token_ids < 0) | (token_ids > 0xFFFFFFFF)
        if not wrong.any():
            return token_ids.astype("<u4").tobytes()  # type: ignore[no-any-return]
        i = int(numpy.argmax(wrong))
        raise _wrong_token(op, i, int(token_ids[i]))
    if isinstance(token_ids, (str, bytes, bytearray)):
        raise InvalidArgument(
            f"{type(token_ids).__name__}, allowed a sequence of ints", op=op, field="token_ids"
        )
    try:
        packed = array("I", token_ids)
    except (TypeError, ValueError, OverflowError):
        raise _first_wrong_token(op, token_ids) from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _first_wrong_token(op: str, token_ids: Any) -> InvalidArgument:
    try:
        for i, t in enumerate(token_ids):
            try:
                ok = 0 <= operator.index(t) <= 0xFFFFFFFF
            except TypeError:
                ok = False
            if not ok:
                return _wrong_token(op, i, t)
    except TypeError:
        pass
    return InvalidArgument(
        f"{type(token_ids).__name__}, allowed a sequence of ints", op=op, field="token_ids"
    )


def _wrong_token(op: str, i: int, token: object) -> InvalidArgument:
    return InvalidArgument(
        f"token_ids[{i}] is {token!r:.80}, allowed 0..{0xFFFFFFFF}", op=op, field="token_ids"
    )


def pack_keys(op: str, keys: Keys, most: int = MAX_KEYS) -> tuple[bytes, int, int]:
    """Keys with nothing between, the length of each in bytes, and their number."""
    numpy = _numpy()
    if numpy is not None and isinstance(keys, numpy.ndarray):
        if keys.dtype != numpy.uint8 or keys.ndim != 2:
            raise _bad(op, f"an array of {keys.dtype} {keys.shape}, allowed uint8 (N, K)")
        count, size = (int(n) for n in keys.shape)
        data = keys.tobytes()
    elif isinstance(keys, (str, bytes, bytearray, memoryview)) or not hasattr(keys, "__len__"):
        raise _bad(op, f"a {type(keys).__name__}, allowed a sequence of bytes")
    else:
        count = len(keys)
        for i, k in enumerate(keys):
            if not isinstance(k, bytes):
                raise _bad(op, f"keys[{i}] is a {type(k).__name__}, allowed bytes")
            if len(k) != len(keys[0]):
                raise _bad(op, f"keys[{i}] has {len(k)} bytes and keys[0] has {len(keys[0])}")
        size = len(keys[0]) if count else 1
        data = b"".join(keys)
    if not 1 <= count <= most:
        raise _bad(op, f"{count} keys, allowed 1..{most}")
    if not 1 <= size <= _MAX_KEY:
        raise _bad(op, f"keys of {size} bytes, allowed 1..{_MAX_KEY}")
    if len(data) > wire.MAX_ARRAY:
        raise _bad(op, f"{len(data)} bytes, allowed 1..{wire.MAX_ARRAY}")
    return data, size, count


def _bad(op: str, detail: str) -> InvalidArgument:
    return InvalidArgument(detail, op=op, field="keys")


def read_lookup(frame: wire.Frame) -> Lookup:
    """The answer to LOOKUP."""
    b = frame.body()
    holders = tuple(
        Holder(
            node=wire.get(h, "node", ""),
            epoch=wire.get(h, "epoch", ""),
            addr=wire.get(h, "addr", ""),
            cache=wire.get(h, "cache", ""),
            blocks=wire.get(h, "blocks", 0),
        )
        for h in wire.get_objects(b, "holders")
    )
    prefix = max((h.blocks for h in holders), default=0)
    return Lookup(prefix, holders, wire.get_strings(b, "unasked"))
