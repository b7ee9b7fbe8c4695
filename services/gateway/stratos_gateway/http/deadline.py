"""How long a client waits for the first token of its answer: the header, bounded by the server's own maximum."""

from __future__ import annotations

from starlette.requests import Request

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import DEADLINE_MS, MAX_DEADLINE_DIGITS

HEADER = "x-stratos-deadline-ms"


def time_to_first_token_s(request: Request, max_s: float) -> float:
    """Seconds from the request's arrival in which its first token is due.

    Args:
        request: with or without the header.
        max_s: the server's maximum, which stands where the client asks for nothing or for more.

    Raises:
        BadRequest: the header is not a whole number in its range.
    """
    values = request.headers.getlist(HEADER)
    if not values:
        return max_s
    text = values[0] if len(values) == 1 else ""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DEADLINE_DIGITS
    if not is_number or not DEADLINE_MS.minimum <= int(text) <= DEADLINE_MS.maximum:
        low, high = int(DEADLINE_MS.minimum), int(DEADLINE_MS.maximum)
        raise BadRequest(f"{HEADER} must be one whole number of milliseconds from {low} to {high}", param=HEADER)
    return min(int(text) / 1000, max_s)
