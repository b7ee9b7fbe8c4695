"""Waits for workers of a revision that end because a newer one is to answer.

    a request waits for a worker of revision 1 -> its last worker leaves -> revision 2 has workers, and the name
    -> the wait ends with ``Superseded`` -> the route prepares the request once more, for revision 2

Only what has sent and computed nothing moves: ``may_move`` of each wait says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stratos_gateway.access.task_end import TaskEnd
from stratos_gateway.answering.chain import Superseded
from stratos_gateway.answering.request import ClientRequest

MayMove = Callable[[], bool]
"""Whether a request may be another revision's by now."""


def moves(request: ClientRequest[Any]) -> bool:
    """Whether a newer revision of its model is to answer a request that waits: nothing was sent, nor will be, and it
    did not come back to the same revision."""
    is_new = request.followed is None and request.prepared.model_digest not in request.superseded
    is_moving = bool(request.kept_body) and is_new and request.is_silent
    if is_moving and (stream := request.exchange.stream) is not None:
        stream.stay_silent()
    return is_moving


def is_move(error: BaseException | None) -> bool:
    """Whether a newer revision is asked instead."""
    return isinstance(error, Superseded)


class Succession:
    """Belongs to the event loop.

    Args:
        is_superseded: whether a revision, by digest, has no workers, while a newer one of its name has.
    """

    def __init__(self, is_superseded: Callable[[str], bool] = lambda digest: False) -> None:
        self._is_superseded = is_superseded
        self._waits: dict[TaskEnd, tuple[str, MayMove]] = {}

    @contextmanager
    def wait(self, digest: str, may_move: MayMove) -> Iterator[None]:
        """Context of a wait for a worker of a revision.

        Raises:
            Superseded: inside of it, or at once: a newer revision is to answer.
        """
        if self._is_superseded(digest) and may_move():
            raise Superseded(digest)
        with TaskEnd() as end:
            self._waits[end] = digest, may_move
            try:
                yield
            finally:
                del self._waits[end]

    def look(self) -> None:
        """End the waits whose revision was superseded; called after that may have changed."""
        for end, (digest, may_move) in list(self._waits.items()):
            if self._is_superseded(digest) and may_move():
                end(Superseded(digest))
