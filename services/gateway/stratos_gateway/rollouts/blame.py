"""Meaning of the end of a request: what it says of the revision that it ran on.

answered, or left in mid-answer       a request
worker lost, engine failed, no answer
within the platform's own time        a request, and an error
left, or its own short deadline       LEFT: the revision was at least as slow as that, and no more is known
no room, gone to an external endpoint MISSED: the revision did not take it
all else                              nothing: limits, refused prompts, stores, gateways that leave, clients' errors
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from stratos.common.errors import (
    Busy,
    DeadlinePassed,
    FeatureUnavailable,
    IdentityMismatch,
    Internal,
    Overloaded,
    QueueTimeout,
    StratosError,
    WaitTooLong,
    WorkerLost,
)
from stratos_gateway.answering.chain import Superseded
from stratos_gateway.answering.edge import HEADER
from stratos_gateway.answering.request import ClientRequest

PATIENT_S = 30.0
"""A client's own deadline that is shorter ends the request for its own reasons."""
_FAULTS = (Busy, FeatureUnavailable, IdentityMismatch, Internal, WorkerLost)


class Ending(Enum):
    """How a request ended, as far as its revision goes."""

    ANSWERED = auto()
    FAILED = auto()
    LEFT = auto()
    """Its client did not wait for more; with a first token it is a request like others."""
    MISSED = auto()
    NOTHING = auto()


def ending_of(request: ClientRequest[Any]) -> Ending:
    """How it ended; of one that ran on workers, was refused, or was given away."""
    output, error = request.output, request.error
    is_elsewhere = output is None or output.sections().get("source") != "workers"
    if is_elsewhere and isinstance(request.declined, WaitTooLong):
        return Ending.MISSED
    if output is not None and is_elsewhere:
        return Ending.NOTHING
    if error is None:
        return Ending.ANSWERED
    if not isinstance(error, StratosError):
        return Ending.LEFT
    if isinstance(error, Superseded):
        return Ending.NOTHING
    if isinstance(error, QueueTimeout | DeadlinePassed):
        return Ending.LEFT if _has_short_deadline(request) else Ending.FAILED
    if isinstance(error, Overloaded):
        return Ending.MISSED if error.reason else Ending.FAILED
    return Ending.FAILED if isinstance(error, _FAULTS) else Ending.NOTHING


def _has_short_deadline(request: ClientRequest[Any]) -> bool:
    """Without the header it is the platform's own bound, however short."""
    return HEADER in request.http.headers and request.deadline_s - request.arrival_s < PATIENT_S
