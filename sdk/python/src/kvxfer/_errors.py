"""Errors between the wire and the callers."""

from __future__ import annotations

from typing import Any

from ._faults import KvxferError, ProtocolViolation, from_wire


def again(
    error: KvxferError, *, op: str, released: bool | None = None, may_have_written: bool | None = None
) -> KvxferError:
    """A copy for one more caller: every caller gets an exception of its own, with its own answer about
    memory."""
    return type(error)(
        error.detail,
        op=op,
        peer=error.peer,
        region=error.region,
        field=error.field,
        may_have_written=error.may_have_written if may_have_written is None else may_have_written,
        retryable=error.retryable,
        released=released,
        guarantee=error.guarantee,
    )


def weaken(error: KvxferError, guarantee: str) -> None:
    """Says of an error made here that it concerns memory of that guarantee, as the daemon's own errors do."""
    error.guarantee = guarantee
    error.args = (error._text(),)


def error_of(body: dict[str, Any], released: bool | None = None) -> KvxferError:
    """The exception for an error object of the wire."""
    try:
        return from_wire(body, released=released)
    except (TypeError, ValueError):
        raise ProtocolViolation("an error without a number", op="frame", field="code") from None
