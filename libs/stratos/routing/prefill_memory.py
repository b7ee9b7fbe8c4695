"""Which prefill worker computed a request's prompt last, for the next attempt of the same request."""

from __future__ import annotations

from collections import OrderedDict


class PrefillMemory:
    """Bounded map from request to prefill incarnation; the oldest entries go first.

    Args:
        max_requests: most entries.
    """

    def __init__(self, max_requests: int = 8192) -> None:
        self._max_requests = max_requests
        self._by_request: OrderedDict[str, str] = OrderedDict()

    def note(self, request_id: str, incarnation: str) -> None:
        """The request's prompt is computed there."""
        self._by_request[request_id] = incarnation
        self._by_request.move_to_end(request_id)
        if len(self._by_request) > self._max_requests:
            self._by_request.popitem(last=False)

    def recall(self, request_id: str) -> str:
        """Where its prompt was computed last; empty when that is not known."""
        return self._by_request.get(request_id, "")
