"""When a receiver leaves its source: the source hangs, gets nowhere with this job, or would be later than another way.

    queued, loading   waits longer than computing here would take, several times over (``spill_ratio``): ``SourceSlow``
    granted           no token computed and no frame sent for ``idle_timeout_s``, whatever its other jobs do: the same
    computing         its step counter stands still: ``WorkerLost``, so it is avoided for a while

Worked example of the first row: the prompt takes 0.5 s at the source, and this worker has as many tokens in its own
queue. So here it would take 1 s, and at a ratio of 4 the source is left once it expects to wait, or has let wait, 4 s.
"""

from __future__ import annotations

from stratos.common.errors import WorkerLost
from stratos.common.slow_peers import SourceSlow
from stratos.core.step_watch import StepWatch
from stratos.worker.handoff.records import Progress, SourcePhase
from stratos.worker.settings import HandoffConfig

IDLE_STEPS = 16
"""A granted job may get nothing for so many of the source's slow steps: others have their turns in between."""


class SourceWatch:
    """Judges the reports of one leg; time is passed in, as monotonic seconds.

    Args:
        config: of hand-offs.
        now_s: when the source was asked.
        num_tokens: that were asked for.
        can_spill: there is another way: the source would compute them.
    """

    def __init__(self, config: HandoffConfig, now_s: float, num_tokens: int, *, can_spill: bool) -> None:
        self._config = config
        self._num_tokens = num_tokens
        self._can_spill = can_spill
        self._steps = StepWatch(now_s)
        self._asked_s = self._moved_s = now_s
        self._is_granted = False
        self._num_computed = 0

    def grant(self, now_s: float) -> None:
        """From now on this worker keeps blocks for it."""
        self._is_granted, self._moved_s = True, now_s

    def note_frame(self, now_s: float) -> None:
        """A frame was announced, or has been taken."""
        self._moved_s = now_s

    def check(self, progress: Progress, now_s: float, num_queued_here: int) -> None:
        """Judge a report, beside so many prompt tokens that wait on this worker.

        Raises:
            WorkerLost: the source hangs.
            SourceSlow: this job is better off elsewhere.
        """
        is_computing = progress.phase is SourcePhase.COMPUTING
        self._steps.observe(progress.engine_step, now_s, is_computing=is_computing, slow_step_s=progress.slow_step_s)
        if self._steps.is_stalled(now_s, self._config.stall_timeout_s):
            raise WorkerLost("the source reports that it computes, and its step counter stands still")
        if progress.num_tokens > self._num_computed:
            self._num_computed, self._moved_s = progress.num_tokens, now_s
        if self._is_granted:
            self._check_idle(progress, now_s)
        elif self._can_spill and progress.phase in (SourcePhase.QUEUED, SourcePhase.LOADING_ADAPTER):
            self._check_wait(progress, now_s, num_queued_here)

    def _check_idle(self, progress: Progress, now_s: float) -> None:
        limit_s = max(self._config.idle_timeout_s, IDLE_STEPS * progress.slow_step_s)
        if now_s - self._moved_s > limit_s:
            raise SourceSlow(f"the source did nothing for this hand-off for {limit_s:g} s")

    def _check_wait(self, progress: Progress, now_s: float, num_queued_here: int) -> None:
        wait_s = max(progress.wait_s, now_s - self._asked_s)
        here_s = progress.compute_s * (1 + num_queued_here / self._num_tokens)
        if here_s and wait_s > max(self._config.spill_wait_s, self._config.spill_ratio * here_s):
            raise SourceSlow(f"the source would begin after {wait_s:.1f} s, and computing here takes {here_s:.1f} s")
