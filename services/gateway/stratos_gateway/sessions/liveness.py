"""Whether a decode worker still moves, judged from what its session says.

Two rules: silence (workers speak every 250 ms in any state), and a step counter that stands still while
the worker says that it computes.  The worker says how long its steps take, and a worker of slow steps gets more time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from stratos.core.step_watch import StepWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """When a session with a worker is given up."""

    connect_timeout_s: Annotated[float, Gt(0)] = 2.0
    """Longest wait for a decode worker's Welcome."""
    silence_timeout_s: Annotated[float, Gt(0)] = 1.5
    """A session without any message for this long is broken; workers speak every 0.25 s."""
    step_timeout_s: Annotated[float, Gt(0)] = 3.0
    """A worker that says it computes and whose step stands still this long is hung (at least 4 of its slow steps)."""


class SessionLiveness:
    """State of one session.

    Args:
        config: limits.
        now_s: monotonic seconds.
    """

    __slots__ = ("_config", "_heard_s", "_steps")

    def __init__(self, config: SessionConfig, now_s: float) -> None:
        self._config = config
        self._heard_s = now_s
        self._steps = StepWatch(now_s)

    @property
    def step(self) -> int:
        """The worker's step counter as it was last heard, -1 before."""
        return self._steps.step

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
