"""Whether a decode worker still moves, judged from what its session says.

Two rules: silence (workers speak every 250 ms in any state), and a step counter that stands still while
the worker says that it computes.  The worker says how long its steps take, and a worker of slow steps gets more time.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.step_watch import StepWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessConfig:
    """Longest silence, and least time of a standing step counter, before a worker counts as hung."""

    silence_timeout_s: float
    step_timeout_s: float


class Liveness:
    """State of one session.

    Args:
        config: limits.
        now_s: monotonic seconds.
    """

    __slots__ = ("_config", "_heard_s", "_steps")

    def __init__(self, config: LivenessConfig, now_s: float) -> None:
        self._config = config
        self._heard_s = now_s
        self._steps = StepWatch(now_s)

    def heard(
        self, step: int, now_s: float, *, is_computing: bool | None = None, slow_step_s: float | None = None
    ) -> None:
        """A message came; what it does not say is ``None``."""
        self._heard_s = now_s
        self._steps.observe(step, now_s, is_computing=is_computing, slow_step_s=slow_step_s)

    def forgive(self, now_s: float) -> None:
        """This process itself was held up: give the worker its time again."""
        self._heard_s = now_s
        self._steps.restart(now_s)

    def fault(self, now_s: float) -> str:
        """Why the worker counts as hung, "" when it does not."""
        if now_s - self._heard_s > self._config.silence_timeout_s:
            return f"silent for {now_s - self._heard_s:.1f} s"
        if self._steps.is_stalled(now_s, self._config.step_timeout_s):
            return f"step {self._steps.step} stands still for {self._steps.stalled_s(now_s):.1f} s"
        return ""
