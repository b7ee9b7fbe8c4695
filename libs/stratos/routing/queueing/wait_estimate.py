"""How long a request would wait: those before it, at the pace at which the queue went lately."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
"""The pace is that of the last so many seconds."""
MAX_DISPATCHES = 1024


class QueuePace:
    """Dispatches of one model's queue."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MAX_DISPATCHES)

    def note_dispatch(self, now: float) -> None:
        """A request was dispatched."""
        self._times.append(now)

    def wait_s(self, num_before: int, oldest_s: float, now: float) -> float:
        """Seconds until a request that arrives now would be dispatched.

        Args:
            num_before: requests that go first.
            oldest_s: how long the oldest of them has waited.
            now: monotonic seconds.

        Returns:
            0 where none is before it.  A queue that did not move lately says the least that is certain: what comes
            after the oldest request waits as long as that one has.
        """
        if num_before == 0:
            return 0.0
        while self._times and self._times[0] < now - WINDOW_S:
            self._times.popleft()
        if not self._times:
            return oldest_s
        elapsed_s = max(now - self._times[0], 1e-3)
        return max(num_before * elapsed_s / len(self._times), 0.0)
