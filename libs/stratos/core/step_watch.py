"""Does a step counter move while its owner says that it computes?  One rule for all that judge a worker.

A worker reports its counter every ``PROGRESS_INTERVAL_S``, together with how long its slow steps take.  The counter
stands still for too long when it has not moved for the user's own limit *and* for ``STEPS_OF_GRACE`` slow steps:

    limit 3.0 s, slow step 0.1 s   stalled after 3.0 s
    limit 3.0 s, slow step 2.0 s   stalled after 8.0 s
"""

from __future__ import annotations

PROGRESS_INTERVAL_S = 0.25
"""Workers report their step counter at least this often, in sessions, Fetch streams and status streams."""
STEPS_OF_GRACE = 4
"""A counter may stand still for this many of the worker's slow steps."""


class StepWatch:
    """State of one step counter; time is passed in, as monotonic seconds."""

    __slots__ = ("_is_computing", "_moved_s", "_slow_step_s", "_step")

    def __init__(self, now_s: float) -> None:
        self._step = -1
        self._is_computing = False
        self._slow_step_s = 0.0
        self._moved_s = now_s

    @property
    def step(self) -> int:
        """The last counter, -1 before the first report."""
        return self._step

    def observe(
        self, step: int, now_s: float, *, is_computing: bool | None = None, slow_step_s: float | None = None
    ) -> None:
        """Take note of a report; what it does not say is ``None`` and stays as it was."""
        # The time counts from the first report of work: the counter of an idle engine stands still by right.
        if step != self._step or (is_computing is not None and not (is_computing and self._is_computing)):
            self._step, self._moved_s = step, now_s
        if is_computing is not None:
            self._is_computing = is_computing
        if slow_step_s is not None:
            self._slow_step_s = slow_step_s

    def restart(self, now_s: float) -> None:
        """Count the time from now on, because the observer itself was held up or the counter is another one."""
        self._moved_s = now_s

    def stalled_s(self, now_s: float) -> float:
        """Seconds since the counter moved, or since work began, as of the reports so far."""
        return max(now_s - self._moved_s, 0.0)

    def is_stalled(self, now_s: float, limit_s: float) -> bool:
        """The owner computes, and its counter stands still for longer than the limit and its slow steps explain."""
        return self._is_computing and self.stalled_s(now_s) > max(limit_s, STEPS_OF_GRACE * self._slow_step_s)
