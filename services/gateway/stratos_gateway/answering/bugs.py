"""Bugs while an answer is sought and sent, as errors of the platform: a stream tells them, no one pays for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from stratos.common.bugs import report_bug
from stratos.common.errors import StratosError
from stratos_gateway.http.sse import SlowClient

_log = logging.getLogger(__name__)


@contextmanager
def bugs_told(request_id: str) -> Iterator[None]:
    """Raise ``Internal`` for what no one expects inside; the traceback is in the log."""
    try:
        yield
    except (StratosError, SlowClient):
        raise
    except Exception as error:  # the edge of the request: whatever it is, the others go on
        raise report_bug(_log, f"in request {request_id}", error) from error
