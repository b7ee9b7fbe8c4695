"""When a request's first token and its whole answer are due: the client's header within the server's own maxima."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import DEADLINE_MS, MAX_DEADLINE_DIGITS

HEADER = "x-stratos-deadline-ms"


@dataclass(frozen=True, slots=True)
class TimeAllowed:
    """Seconds from a request's arrival."""

    first_token_s: float
    end_s: float
    """Seconds to the end of the whole answer."""


def time_allowed(request: Request, most: TimeAllowed) -> TimeAllowed:
    """How long a request may take.

    Args:
        request: with or without the header, which bounds the whole answer.
        most: the server's maxima, which stand where the client asks for nothing or for more.

    Raises:
        BadRequest: the header is not a whole number in its range.
    """
    values = request.headers.getlist(HEADER)
    if not values:
        return most
    text = values[0] if len(values) == 1 else ""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DEADLINE_DIGITS
    if not is_number or not DEADLINE_MS.minimum <= int(text) <= DEADLINE_MS.maximum:
        low, high = int(DEADLINE_MS.minimum), int(DEADLINE_MS.maximum)
        raise BadRequest(f"{HEADER} must be one whole number of milliseconds from {low} to {high}", param=HEADER)
    asked_s = int(text) / 1000
    return TimeAllowed(min(asked_s, most.first_token_s), min(asked_s, most.end_s))
