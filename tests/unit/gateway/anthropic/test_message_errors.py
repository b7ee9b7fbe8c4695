"""Errors in Anthropic's envelope: each status has a type that its clients know."""

from __future__ import annotations

import pytest

from stratos.common.errors import (
    BadRequest,
    BodyTimeout,
    InsufficientQuota,
    Internal,
    KeyReused,
    NotFound,
    Overloaded,
    StratosError,
    StreamGone,
    UnsupportedEncoding,
)
from stratos_gateway.anthropic.errors import error_envelope


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (StreamGone("x"), "invalid_request_error"),
        (KeyReused("x"), "invalid_request_error"),
        (UnsupportedEncoding("x"), "invalid_request_error"),
        (NotFound("x"), "not_found_error"),
        (BodyTimeout("x"), "timeout_error"),
        (InsufficientQuota("x"), "billing_error"),
        (Overloaded("x"), "overloaded_error"),
        (Internal("x"), "api_error"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_fault_of_the_request_is_none_of_the_api(error: StratosError, kind: str) -> None:
    envelope = error_envelope(error, "req-1")
    assert (envelope["type"], envelope["request_id"], envelope["error"]["type"]) == ("error", "req-1", kind)
