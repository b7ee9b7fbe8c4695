"""Bugs at the edges of a process: the log gets the traceback, the client gets an id to ask for."""

from __future__ import annotations

import logging

from stratos.common.errors import Internal
from stratos.common.ids import new_id


def report_bug(logger: logging.Logger, where: str, error: Exception | None = None) -> Internal:
    """Log an exception under a fresh id; returns the error for the client.

    Args:
        logger: of the module that caught it.
        where: what was being done, for the log.
        error: the exception; by default the one that is being handled.
    """
    error_id = new_id("err")
    logger.error("bug %s, reported as %s", where, error_id, exc_info=error or True)
    return Internal(f"internal error {error_id}; the server's log has the details")
