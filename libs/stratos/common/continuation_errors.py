"""Errors of continuation tokens, a branch of the tree in ``errors``.

InvalidContinuation     400 invalid_continuation   no token of this tenant, or an altered one
ContinuationExpired     410 continuation_expired   its time is over
ContinuationUsed        410 continuation_used      the rest was, or is being, asked for with it
ContinuationStale       410 continuation_stale     its revision of model or adapter is not there any more
ContinuationMismatch    422 continuation_mismatch  it is of another request
"""

from __future__ import annotations

from stratos.common.errors import BadRequest, Permanent


class InvalidContinuation(BadRequest):
    """A token that was altered, or that this tenant never had."""

    code = "invalid_continuation"


class ContinuationExpired(Permanent):
    """The time of a token is over."""

    http_status = 410
    grpc_code = "NOT_FOUND"
    code = "continuation_expired"
    type = "invalid_request_error"


class ContinuationUsed(ContinuationExpired):
    """The rest was asked for with this token before, or another request is at it."""

    code = "continuation_used"


class ContinuationStale(ContinuationExpired):
    """The revision of a token's model, or its adapter, is not there any more."""

    code = "continuation_stale"


class ContinuationMismatch(Permanent):
    """A token came with another request than its own."""

    http_status = 422
    grpc_code = "INVALID_ARGUMENT"
    code = "continuation_mismatch"
    type = "invalid_request_error"
