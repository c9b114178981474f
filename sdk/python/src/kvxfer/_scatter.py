"""Scatters: byte ranges moved between an own raw region and an advertised one."""

from __future__ import annotations

from ._transfer import Transfer


class Scatter(Transfer):
    """A transfer between an own region and a peer's, from :meth:`Region.writev` or :meth:`Region.readv`.

    It ends as other transfers do; a range outside what is advertised ends it with OutOfBounds. Until it is
    released, the own bytes of a write must not be changed and those of a read not be used.

    Attributes:
        transfer_id: 32 hex digits, in traces and logs of both nodes.
        trace_id: 32 hex digits.
        traceparent: W3C context of the call's span.
    """

    _of_cache = False
    _span_name = "kvxfer.scatter"
