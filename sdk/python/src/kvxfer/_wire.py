"""The local protocol's bytes: frames and packed arrays. No I/O.

A frame is a 32-byte little-endian header, a JSON body and an array (packed integers or opaque bytes). A
request carries an id that its answer repeats; an event carries 0.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ._faults import ProtocolViolation

MAGIC = 0x4658564B  # the bytes "KVXF"
FRAME_VERSION = 1
MIN_VERSION = 1
MAX_VERSION = 1

MAX_JSON = 1 << 20
MAX_ARRAY = 64 << 20
MAX_FDS = 16
MAX_NOTIFICATION = 64 << 10

FLAG_NO_REPLY = 1

HELLO, HELLO_OK, ERROR, OK, PING = 0x01, 0x02, 0x03, 0x04, 0x05
REGISTER_REGION, DEREGISTER_REGION, REGISTER_CACHE, DROP_CACHE = 0x10, 0x11, 0x12, 0x13
BLOCKS, EVICT, PUBLISH, LOOKUP, OPEN = 0x14, 0x15, 0x16, 0x17, 0x18
LEASE, REVOKE, RENEW, ADVERTISE = 0x20, 0x21, 0x22, 0x23
PUSH, PUSH_LAYER, PUSH_FINISH, PUSH_CANCEL, PULL, SCATTER = 0x30, 0x31, 0x32, 0x33, 0x34, 0x35
PREPARE, POST = 0x36, 0x37
EVENT_LAYERS, EVENT_LEASE, EVENT_TRANSFER, EVENT_RELEASED = 0x40, 0x41, 0x42, 0x43
EVENT_HOLDER, EVENT_GRANTED, EVENT_PREPARED, EVENT_POSTED = 0x44, 0x45, 0x46, 0x47
SPANS, STATUS, RING = 0x50, 0x51, 0x58

#: The feature that PREPARE, POST and RING belong to.
PREPARED = "prepared"
#: Features that this version knows and would use.
FEATURES = (PREPARED,)

# magic u32, version u8, kind u8, flags u16, request u64, JSON bytes u32, array bytes u32, fds u16, 6 reserved
_HEADER = struct.Struct("<IBBHQIIH6x")
HEADER_SIZE = _HEADER.size
_LAYER_PART = struct.Struct("<QIIII")
#: {prepared u64, cookie u64, timeout in nanoseconds u64}.
POST_ENTRY = struct.Struct("<QQQ")
#: {cookie u64, code u32 and flags u32 as one number, bytes u64, nanoseconds u64}.
POSTED_ENTRY = struct.Struct("<QQQQ")

assert HEADER_SIZE == 32


@dataclass(frozen=True)
class Frame:
    """One message as it was received."""

    kind: int
    flags: int = 0
    request: int = 0
    json: bytes = b""
    array: bytes = b""
    fds: int = 0

    def body(self) -> dict[str, Any]:
        """The JSON body; an absent one is empty."""
        if not self.json:
            return {}
        try:
            body = json.loads(self.json)
        except (ValueError, RecursionError) as e:
            raise violation("body", f"kind {self.kind:#04x}: {type(e).__name__}") from None
        if not isinstance(body, dict):
            raise violation("body", f"kind {self.kind:#04x}: no JSON object")
        return body


def violation(field: str, detail: str) -> ProtocolViolation:
    return ProtocolViolation(detail, op="frame", field=field)


def head(
    kind: int, request: int, body: dict[str, Any] | None, array_bytes: int, flags: int = 0, fds: int = 0
) -> bytes:
    """A frame without its array: header and JSON body."""
    raw = b"" if body is None else json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    return _HEADER.pack(MAGIC, FRAME_VERSION, kind, flags, request, len(raw), array_bytes, fds) + raw


class Parser:
    """Cuts a byte stream into frames. Bytes are kept only as they arrive, so a false length costs nothing."""

    def __init__(self) -> None:
        self._buf = bytearray()
        self._need = HEADER_SIZE

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Adds data and yields the frames that are whole now; ProtocolViolation for what is no frame."""
        self._buf += data
        while len(self._buf) >= self._need:
            magic, version, kind, flags, request, n_json, n_array, fds = _HEADER.unpack_from(self._buf)
            if magic != MAGIC:
                raise violation("magic", f"{magic:#010x} is not a kvxfer frame")
            if version != FRAME_VERSION:
                raise violation("version", f"frame format {version}, want {FRAME_VERSION}")
            if n_json > MAX_JSON:
                raise violation("json_length", f"{n_json}, allowed 0..{MAX_JSON}")
            if n_array > MAX_ARRAY:
                raise violation("array_length", f"{n_array}, allowed 0..{MAX_ARRAY}")
            if fds > MAX_FDS:
                raise violation("fd_count", f"{fds}, allowed 0..{MAX_FDS}")
            end = HEADER_SIZE + n_json + n_array
            if len(self._buf) < end:
                self._need = end
                return
            middle = HEADER_SIZE + n_json
            frame = Frame(
                kind, flags, request, bytes(self._buf[HEADER_SIZE:middle]), bytes(self._buf[middle:end]), fds
            )
            del self._buf[:end]
            self._need = HEADER_SIZE
            yield frame


_V = TypeVar("_V", int, str, bool)


def get(body: dict[str, Any], key: str, default: _V) -> _V:
    """A field of a body, checked to have the default's type. null is Go's nil and counts as absent."""
    v = body.get(key)
    if v is None:
        return default
    if type(v) is not type(default):
        raise violation(key, f"{type(v).__name__}, want {type(default).__name__}")
    return v


def get_id(body: dict[str, Any], key: str) -> int:
    """An unsigned field that must be there."""
    v = body.get(key)
    if type(v) is not int or not 0 <= v < 1 << 64:
        raise violation(key, "absent or no unsigned integer")
    return v


def get_strings(body: dict[str, Any], key: str) -> tuple[str, ...]:
    """A list of strings; absent or null is empty."""
    v = body.get(key)
    if v is None:
        return ()
    if not isinstance(v, list) or not all(isinstance(x, str) for x in v):
        raise violation(key, "no list of strings")
    return tuple(v)


def get_objects(body: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; absent or null is empty."""
    v = body.get(key)
    if v is None:
        return []
    if not isinstance(v, list) or not all(isinstance(x, dict) for x in v):
        raise violation(key, "no list of objects")
    return v


def get_error(body: dict[str, Any]) -> dict[str, Any] | None:
    """The error object of an event; None where all went well."""
    v = body.get("error")
    if v is not None and not isinstance(v, dict):
        raise violation("error", "no JSON object")
    return v


def base64(data: bytes) -> str:
    """Bytes inside a JSON body."""
    return binascii.b2a_base64(data, newline=False).decode()


def milliseconds(seconds: float) -> int:
    """A duration as it travels: at least one millisecond."""
    return max(1, round(seconds * 1000))


def pack_layer_part(transfer: int, layer: int, first: int, count: int) -> bytes:
    """{transfer u64, layer u32, first u32, count u32, reserved u32}; count 0: to the list's end."""
    return _LAYER_PART.pack(transfer, layer, first, count, 0)


def u32s(field: str, b: bytes) -> memoryview:
    """A packed array of u32 as a read-only memoryview of ints."""
    if len(b) % 4:
        raise violation(field, f"{len(b)} bytes are no multiple of 4")
    return memoryview(b).cast("I")


def layers_visible(b: bytes) -> tuple[int, memoryview]:
    """{lease u64, layer u32 ...}."""
    if len(b) < 8 or len(b) % 4:
        raise violation("layers", f"{len(b)} bytes")
    return int.from_bytes(b[:8], "little"), u32s("layers", b[8:])


def block_entries(b: bytes) -> tuple[memoryview, memoryview, memoryview]:
    """{block u32, state u32, generation u64} ... as three strided columns."""
    if len(b) % 16:
        raise violation("blocks", f"{len(b)} bytes are no multiple of 16")
    words, longs = memoryview(b).cast("I"), memoryview(b).cast("Q")
    return words[0::4], words[1::4], longs[1::2]
