"""Time to first token and between tokens, as they were in the last seconds: for routers that choose by them."""

from __future__ import annotations

from stratos.engine.contract.results import StepResult

WINDOW_S = 10.0
"""Age from which a latency counts no more; without a newer one it is unknown, and a slow worker is tried again."""


class RecentMean:
    """Mean of the values of the last ``WINDOW_S`` to one and a half of it."""

    def __init__(self) -> None:
        self._began_s = float("-inf")
        self._halves = [(0.0, 0), (0.0, 0), (0.0, 0)]
        """Sum and count of the newest half window first."""

    def add(self, value: float, now_s: float) -> None:
        """Take a value in."""
        self._turn(now_s)
        total, count = self._halves[0]
        self._halves[0] = (total + value, count + 1)

    def value(self, now_s: float) -> float:
        """The mean; 0 without values."""
        self._turn(now_s)
        count = sum(half[1] for half in self._halves)
        return sum(half[0] for half in self._halves) / count if count else 0.0

    def _turn(self, now_s: float) -> None:
        half_s = WINDOW_S / 2
        if now_s - self._began_s >= len(self._halves) * half_s:
            self._halves, self._began_s = [(0.0, 0)] * len(self._halves), now_s
        while now_s - self._began_s >= half_s:
            self._halves = [(0.0, 0), *self._halves[:-1]]
            self._began_s += half_s


class Latencies:
    """Latencies of one worker. Belongs to the event loop."""

    def __init__(self) -> None:
        self.first_token = RecentMean()
        """From the arrival of a request to the end of the step that sampled its first token."""
        self.next_token = RecentMean()
        """Between two steps with tokens, where streams got one in the second that were running before."""
        self._last_s = 0.0

    def on_first_token(self, arrival_s: float, ended_s: float) -> None:
        """A request got its first token."""
        self.first_token.add(ended_s - arrival_s, ended_s)

    def on_step(self, result: StepResult) -> None:
        """A step ended."""
        if not result.outputs:
            return
        is_running = any(output.key not in result.started_stats for output in result.outputs)
        if is_running and self._last_s:
            self.next_token.add(result.ended_s - self._last_s, result.ended_s)
        self._last_s = result.ended_s
