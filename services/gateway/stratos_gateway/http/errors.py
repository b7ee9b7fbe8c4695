"""Errors as clients see them: status, the four OpenAI keys, Retry-After.

Classes that mean something only between our processes are shown as the public one that fits.  Texts of bugs, and texts
that may name our processes, stores or other tenants' load, stay in the log: ``StratosError.public_text`` stands for
them.  Parameters have the names of the route that was called, not those of our own messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from stratos.common.errors import (
    AdapterMismatch,
    AdapterUnavailable,
    BodyTimeout,
    Busy,
    IdentityMismatch,
    InsufficientQuota,
    Internal,
    InvalidApiKey,
    InvalidCheckpoint,
    Overloaded,
    QueueTimeout,
    RateLimited,
    RequestOverRate,
    Retryable,
    StratosError,
    UnsupportedEncoding,
    WaitTooLong,
    WorkerLost,
)
from stratos.common.shed_reason import ShedReason
from stratos_gateway.http.retry_after import own_after_s, spread_after_s

CHALLENGE = 'Bearer realm="StratosServe"'
SHED_HEADER = "x-stratos-shed-reason"
_SHED_REASONS = frozenset(ShedReason)

_PROMPT = "prompt"
_PUBLIC_PARAMS = {
    "prompt_ids": _PROMPT,
    "num_prompt_tokens": _PROMPT,
    "messages": _PROMPT,
    "prompt": _PROMPT,
    "input": _PROMPT,
    "inputs": _PROMPT,
    "choices": "n",
    "bad_sequences": "bad_words",
    "num_logprobs": "logprobs",
    "num_prompt_logprobs": "prompt_logprobs",
    "num_dimensions": "dimensions",
}
"""Fields of our messages -> parameters of requests."""
INTERNAL_PARAMS = frozenset(
    (
        "adapter_digest",
        "after",
        "attempt",
        "block_hashes",
        "block_size",
        "cache_salt",
        "first_tokens",
        "gateway",
        "holder",
        "incarnation",
        "interval_ms",
        "kv_key",
        "leg",
        "num_skip_tokens",
        "outcome",
        "pooling",
        "priority_class",
        "request_id",
        "role",
        "seq",
        "sleep_state",
        "timeout_ms",
        "token_ids",
        "ttl_ms",
        "watermark",
        "work",
    )
)
"""Fields of our messages that clients do not set."""


def public_error(error: StratosError) -> StratosError:
    """The error whose status and code are shown in place of those of ``error``."""
    if isinstance(error, Busy | WorkerLost):
        return Overloaded(after_s=error.after_s)
    if isinstance(error, WaitTooLong):
        return QueueTimeout(after_s=error.after_s)
    if isinstance(error, AdapterMismatch):
        return AdapterUnavailable()
    if isinstance(error, IdentityMismatch | InvalidCheckpoint):
        return Internal("internal error")
    return error


def shed_reason(error: BaseException | None) -> str:
    """Why a full system refused; empty for other errors, and for a peer's reason that this build does not know."""
    reason = error.reason if isinstance(error, Overloaded) else ""
    return reason if reason in _SHED_REASONS else ""


def public_param(param: str | None, prompt_param: str) -> str | None:
    """The parameter of a request that a field of our messages came from; ``None`` where clients have none.

    Args:
        param: as an error of any process names it.
        prompt_param: what the route calls its prompt: "messages", "prompt" or "input".
    """
    if param is None or param in INTERNAL_PARAMS:
        return None
    public = _PUBLIC_PARAMS.get(param, param)
    return prompt_param if public == _PROMPT else public


def error_body(error: StratosError) -> dict[str, Any]:
    """The OpenAI error object."""
    shown = public_error(error)
    text = error.public_text or shown.message
    return {"error": {"message": text, "type": shown.type, "param": shown.param, "code": shown.code}}


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """A dialect's way to tell errors and limits."""

    body: Callable[[StratosError, str], dict[str, Any]]
    """Error and id of the request to the body of an answer."""
    id_header: bytes = b""
    """Header that has the id besides x-request-id, on every answer."""
    limits_prefix: str = ""
    """Begins headers that tell of a tenant's limits besides OpenAI's, with dates."""


OPENAI_ERRORS = ErrorForm(lambda error, request_id: error_body(error))


def answer_headers(error: StratosError, random: Random) -> dict[str, str]:
    """Headers that go with the status: when to try again, how to authenticate, what a body may be."""
    headers = retry_headers(error, random)
    if isinstance(error, InvalidApiKey):
        headers["www-authenticate"] = CHALLENGE
    if isinstance(error, BodyTimeout):
        headers["connection"] = "close"  # where the next request begins is not known
    if isinstance(error, UnsupportedEncoding):
        headers["accept-encoding"] = "identity"
    return headers


def retry_headers(error: StratosError, random: Random) -> dict[str, str]:
    """Retry-After where a retry makes sense, in whole seconds, rounded up; and why a full system refused."""
    shown = public_error(error)
    if not isinstance(shown, Retryable):
        return {"x-should-retry": "false"} if isinstance(shown, InsufficientQuota | RequestOverRate) else {}
    after_s = own_after_s(shown) if isinstance(shown, RateLimited) else spread_after_s(shown, random)
    headers = {
        "retry-after": str(math.ceil(after_s)),
        "retry-after-ms": str(math.ceil(after_s * 1000)),
        "x-should-retry": "true",
    }
    return headers | {SHED_HEADER: reason} if (reason := shed_reason(error)) else headers
