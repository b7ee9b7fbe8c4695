"""Errors as clients see them: status, the four OpenAI keys, Retry-After.

Classes that mean something only between our processes are shown as the public one that fits; texts of bugs, and
texts that name our folders and buckets, stay in the log.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from stratos.common.errors import (
    AdapterMismatch,
    AdapterUnavailable,
    Busy,
    IdentityMismatch,
    Internal,
    InvalidCheckpoint,
    Overloaded,
    RateLimited,
    Retryable,
    StratosError,
    WorkerLost,
)

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1, 30


def public_error(error: StratosError) -> StratosError:
    """The error to show in place of ``error``."""
    if isinstance(error, Busy | WorkerLost):
        return Overloaded("the platform could not finish this request now; try again", after_s=error.after_s)
    if isinstance(error, AdapterMismatch):
        return AdapterUnavailable("the adapter's files are not the ones that were registered; register it again")
    if isinstance(error, AdapterUnavailable):
        return AdapterUnavailable("the adapter cannot be loaded now; try again", after_s=error.after_s)
    if isinstance(error, IdentityMismatch | InvalidCheckpoint):
        return Internal("internal error")
    return error


def error_body(error: StratosError) -> dict[str, Any]:
    """The OpenAI error object."""
    shown = public_error(error)
    return {"error": {"message": shown.message, "type": shown.type, "param": shown.param, "code": shown.code}}


def retry_headers(error: StratosError, random: Random) -> dict[str, str]:
    """Retry-After where a retry makes sense: exact for a tenant's own limits, jittered otherwise."""
    shown = public_error(error)
    if not isinstance(shown, Retryable):
        return {"x-should-retry": "false"} if shown.code == "insufficient_quota" else {}
    after_s = max(shown.after_s or 0.0, MIN_RETRY_AFTER_S)
    if not isinstance(shown, RateLimited):
        after_s *= random.uniform(1.0, 3.0)
    return {"retry-after": str(min(math.ceil(after_s), MAX_RETRY_AFTER_S))}
