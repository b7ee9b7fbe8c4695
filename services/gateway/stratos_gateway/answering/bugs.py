"""Bugs while an answer is sought and sent, as errors of the platform: a stream tells them, no one pays for them."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from types import TracebackType

from stratos.common.bugs import report_bug
from stratos.common.errors import StratosError
from stratos_gateway.http.sse import SlowClient

_log = logging.getLogger(__name__)


class BugsTold(AbstractContextManager[None]):
    """Raises ``Internal`` for what no one expects inside; the traceback is in the log."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise what is told instead; whatever it is, other requests go on."""
        if isinstance(error, Exception) and not isinstance(error, StratosError | SlowClient):
            raise report_bug(_log, f"in request {self._request_id}", error) from error
