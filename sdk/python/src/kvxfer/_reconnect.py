"""Coming back after the daemon was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ._cache import Cache
from ._faults import AlreadyExists, DaemonUnavailable, DeadlineExceeded, Draining
from ._registered import Attachment, Registered
from ._session import Session

_T = TypeVar("_T")


def retry(fn: Callable[[], _T], deadline: float, closed: Callable[[], bool]) -> _T:
    """Repeats fn while the daemon restarts or still ends the old session."""
    pause = 0.02
    while True:
        try:
            return fn()
        except (DaemonUnavailable, Draining, AlreadyExists, DeadlineExceeded):
            if time.monotonic() + pause >= deadline or closed():
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def register_again(
    session: Session, places: list[Registered], deadline: float, closed: Callable[[], bool]
) -> dict[Registered, Attachment]:
    """Hands everything over to a new session, with what it still holds."""
    made: dict[Registered, Attachment] = {}
    for place in places:
        attachment, served = _register_one(session, place, deadline, closed)
        place._keep_only(served)
        made[place] = attachment
    return made


def _register_one(
    session: Session, place: Registered, deadline: float, closed: Callable[[], bool]
) -> tuple[Attachment, memoryview]:
    vouches = place._vouches()
    return retry(lambda: place._register("reconnect", session, vouches, deadline), deadline, closed)


def tell_fenced(session: Session, places: list[Registered], old: list[Session]) -> None:
    """Ends what the new session's existence has fenced.

    The same daemon registers memory again only when everything of its old session there is fenced. Of another
    one only its exit says so, which the old session's thread watches; where the exit cannot be seen, the
    node's rule counts: it starts only when its predecessor is gone.
    """
    for place in places:
        for s in old:
            same = s.epoch == session.epoch
            unseen = s.conn.daemon_exited(0) is None and s.node == session.node
            if same or unseen:
                s.fenced(place.name)


def served(places: list[Registered]) -> dict[str, memoryview]:
    """The block ids that each cache vouches for."""
    return {p.name: memoryview(p._vouched.packed()).cast("I")[0::4] for p in places if isinstance(p, Cache)}
