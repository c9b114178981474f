"""Checks of arguments: an error names the field and what is allowed."""

from __future__ import annotations

import math
import operator
import re

from . import _wire as wire
from ._faults import InvalidArgument

#: The longest time that may be asked for, in seconds.
MAX_SECONDS = 86_400.0


def check_timeout(op: str, timeout: float | None, field: str = "timeout") -> float | None:
    """A time-out of a wait: 0..86400 seconds, or None."""
    if timeout is None:
        return None
    if not _is_number(timeout) or not 0 <= timeout <= MAX_SECONDS:
        raise InvalidArgument(f"{timeout!r} seconds, allowed 0..{MAX_SECONDS:.0f}", op=op, field=field)
    return float(timeout)


def check_duration(op: str, seconds: float, field: str = "timeout") -> float:
    """A deadline that travels: 0.001..86400 seconds."""
    if not _is_number(seconds) or not 0.001 <= seconds <= MAX_SECONDS:
        raise InvalidArgument(f"{seconds!r} seconds, allowed 0.001..{MAX_SECONDS:.0f}", op=op, field=field)
    return float(seconds)


def _is_number(v: object) -> bool:
    try:
        return not isinstance(v, (str, bytes)) and not math.isnan(float(v))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def check_index(op: str, field: str, v: int, low: int, high: int) -> int:
    """An integer of any type in low..high."""
    try:
        i = operator.index(v)
    except TypeError:
        raise InvalidArgument(f"{v!r:.80} is no integer, allowed {low}..{high}", op=op, field=field) from None
    if not low <= i <= high:
        raise InvalidArgument(f"{i}, allowed {low}..{high}", op=op, field=field)
    return i


def check_notification(op: str, notification: bytes) -> bytes:
    """A notification as bytes, at most 64 KiB."""
    try:
        data = bytes(memoryview(notification))
    except TypeError:
        raise InvalidArgument(
            f"{type(notification).__name__}, allowed bytes", op=op, field="notification"
        ) from None
    if len(data) > wire.MAX_NOTIFICATION:
        raise InvalidArgument(
            f"{len(data)} bytes, allowed 0..{wire.MAX_NOTIFICATION}", op=op, field="notification"
        )
    return data


def check_text(op: str, field: str, text: str, least: int, most: int) -> str:
    """A str of least..most bytes of UTF-8."""
    n = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else -1
    if not least <= n <= most:
        raise InvalidArgument(f"{text!r:.80}, allowed a str of {least}..{most} bytes", op=op, field=field)
    return text


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_name(op: str, field: str, name: str) -> str:
    """A name: 1..64 of [A-Za-z0-9_.-]."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r:.80}, allowed 1..64 of [A-Za-z0-9_.-]", op=op, field=field)
    return name


def check_instance_key(op: str, instance: str, key: bytes) -> bytes:
    """An instance's secret as bytes, 16..64 of them, and its name."""
    check_name(op, "instance", instance)
    if not isinstance(key, (bytes, bytearray)) or not 16 <= len(key) <= 64:
        n = f"{len(key)} bytes" if isinstance(key, (bytes, bytearray)) else f"a {type(key).__name__}"
        raise InvalidArgument(f"{n}, allowed 16..64 bytes", op=op, field="instance_key")
    return bytes(key)
