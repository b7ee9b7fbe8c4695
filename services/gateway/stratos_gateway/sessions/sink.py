"""The receiver of what a session hears about one attempt."""

from __future__ import annotations

from typing import Protocol

from stratos.common.errors import StratosError
from stratos.core.generation import ChoiceDelta, RequestDelta


class AttemptSink(Protocol):
    """Where a session delivers the messages of one attempt; called on the event loop, must not block.

    ``now_s`` is when the message came, monotonic, and the same for all that it has: it may speak of many requests.
    """

    @property
    def label(self) -> str:
        """The request's name for log lines."""

    def on_output(self, output: RequestDelta, now_s: float) -> None:
        """Take news of the request; with ``error`` it is over at the worker."""

    def on_tokens(self, delta: ChoiceDelta, now_s: float) -> None:
        """Take new tokens of one choice, or its end, which are all the news there is."""

    def on_token(self, offset: int, token_id: int, now_s: float) -> None:
        """Take one more token of choice 0, which is all the news there is.

        Args:
            offset: its position among the choice's emitted tokens.
            token_id: of the token.
            now_s: as above.
        """

    def on_failure(self, error: StratosError) -> None:
        """A message could not be handled; the worker still runs the attempt."""

    def on_lost(self, cause: str, *, was_taken: bool = True) -> None:
        """The session broke.

        Args:
            cause: "broken" or "hang".
            was_taken: the worker has said that it took the attempt.
        """
