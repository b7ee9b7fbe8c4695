"""Errors in Anthropic's envelope, and its headers; status, code and parameter are those that every route has."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from stratos.common.errors import InsufficientQuota, StratosError
from stratos_gateway.http.errors import ErrorForm, error_body, public_error

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""By status; others are faults of the request below 500, and of the API from there on."""


def error_object(error: StratosError) -> dict[str, Any]:
    """The error, its type being one that this API has."""
    shown = public_error(error)
    other = "invalid_request_error" if shown.http_status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    kind = "billing_error" if isinstance(shown, InsufficientQuota) else _TYPES.get(shown.http_status, other)
    return {**error_body(error)["error"], "type": kind}


def error_envelope(error: StratosError, request_id: str) -> dict[str, Any]:
    """The body of an answer with an error."""
    return {"type": "error", "error": error_object(error), "request_id": request_id}


MESSAGE_ERRORS = ErrorForm(error_envelope, b"request-id", "anthropic-ratelimit")
