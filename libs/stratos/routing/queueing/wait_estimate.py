"""How long a request would wait: those before it, at the pace at which the queue went lately."""

from __future__ import annotations

from collections import deque

from stratos.core.requests.limits import NUM_PRIORITY_CLASSES

WINDOW_S = 10.0
"""The pace is that of the last so many seconds."""
MAX_DISPATCHES = 1024
"""Of each class."""


class QueuePace:
    """Dispatches of one model's queue."""

    def __init__(self) -> None:
        self._times = [deque[float](maxlen=MAX_DISPATCHES) for _ in range(NUM_PRIORITY_CLASSES)]

    def note_dispatch(self, place: int, now: float) -> None:
        """A request of a class was dispatched."""
        self._times[place].append(now)

    def wait_s(self, num_before: int, oldest_s: float, now: float, top: int = 0) -> float:
        """Seconds until a request that arrives now would be dispatched.

        Args:
            num_before: requests that go first.
            oldest_s: how long the oldest of them has waited.
            now: monotonic seconds.
            top: highest class whose dispatches say how fast it goes: where none of those above waits, they take places
                of their own, and none of those that this queue gets.

        Returns:
            0 where none is before it.  A queue that did not move lately says the least that is certain: what comes
            after the oldest request waits as long as that one has.
        """
        if num_before == 0:
            return 0.0
        counted = self._times[top:]
        for times in counted:
            while times and times[0] < now - WINDOW_S:
                times.popleft()
        num_dispatched = sum(map(len, counted))
        if not num_dispatched:
            return oldest_s
        elapsed_s = max(now - min(times[0] for times in counted if times), 1e-3)
        return max(num_before * elapsed_s / num_dispatched, 0.0)
