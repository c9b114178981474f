"""What permissions and transfers have in common: they end, and their memory is reusable then or later."""

from __future__ import annotations

from typing import TypeVar

from ._errors import weaken
from ._faults import Cancelled, DeadlineExceeded, KvxferError
from ._pending import Pending
from ._registered import Registered
from ._session import Session
from ._trace import Span

T = TypeVar("T")


class Fence(Pending[None]):
    """Ends when nothing can touch the memory any more."""

    def _timed_out(self) -> KvxferError:
        return DeadlineExceeded("not fenced yet: the memory is HELD", op=self._op, released=False)


class Held(Pending[T]):
    """A permission or a transfer. Ending is not the same as being reusable: see :attr:`released`."""

    #: Whether the exit of this node's daemon is a fence: it is, wherever the memory is this process's own.
    _exit_fences = True
    _writes = True
    #: Whether the memory is a cache's, which traces name.
    _of_cache = True

    def __init__(
        self,
        session: Session,
        op: str,
        deadline: float | None,
        place: str,
        span: Span | None,
        keep: object,
    ) -> None:
        super().__init__(session, op, deadline)
        self._session = session
        self._place = place  # the name of the cache or region
        self._keep = keep  # the memory and the client, while this lives
        self._guarantee = keep._guarantee if isinstance(keep, Registered) else "full"
        self._span = span
        self._released = False
        self._release = Fence(session, f"{op}.released", None)
        self._release._quiet = True

    @property
    def released(self) -> bool:
        """True when nothing of this can touch the blocks' memory any more; False while it is HELD.

        It may become True after the end: by a later word of the daemon, by :meth:`Client.reconnect` to the
        same daemon, or because the daemon's process has really exited.
        """
        self._session.check_fork()
        return self._released

    @property
    def when_released(self) -> Pending[None]:
        """Ends when :attr:`released` becomes True; it has no deadline of its own."""
        self._session.check_fork()
        self._release._hand_out()
        return self._release

    def wait_released(self, timeout: float = 30.0) -> None:
        """Waits until the memory is reusable; DeadlineExceeded (released=False) after timeout seconds."""
        self._release.wait(timeout)

    # What follows is called by the SDK.

    def _on_lost(self, error: KvxferError) -> None:
        self._fail(error)

    def _on_fenced(self) -> None:
        if not self._done:
            self._fail(self._dropped())
        self._set_released()
        self._tell_released()

    def _dropped(self) -> KvxferError:
        """The error of what the end of its memory has ended."""
        return Cancelled("its memory was given back", op=self._op, may_have_written=True, released=True)

    def _timed_out(self) -> KvxferError:
        return DeadlineExceeded(
            "still pending when the wait ended",
            op=self._op,
            released=self._released,
            may_have_written=self._writes and not self._released,
        )

    def _set_released(self) -> None:
        """First half, before the outcome is told: who sees the outcome sees this too."""
        self._released = True
        if self._error is not None:
            self._error.released = True

    def _tell_released(self) -> None:
        self._release._finish(None)

    def _state(self) -> str:
        return super()._state() + (" released" if self._released else " held" if self._done else "")

    def _end(self, value: T | None, error: KvxferError | None) -> bool:
        if error is not None and self._guarantee != "full":
            weaken(error, self._guarantee)
        # The span ends before the outcome is told, so that a caller who then closes the client loses no span.
        span, self._span = self._span, None
        if span is not None and not self._done:
            self._describe(span, value)
            span.set("kvxfer.result", "DONE" if error is None else type(error).__name__)
            if error is not None and error.may_have_written:
                span.set("kvxfer.may_have_written", True)
            self._session.end_span(span, error)
        return super()._end(value, error)

    def _describe(self, span: Span, value: T | None) -> None:
        if self._place and self._of_cache:
            span.set("kvxfer.cache", self._place)
