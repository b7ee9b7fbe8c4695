"""At which pace a tenant's sequences end, for the time at which one that is refused should come again."""

from __future__ import annotations

from collections import deque

_MAX_ENDS = 32
_WINDOW_S = 30.0
_UNKNOWN_S = 1.0
_MIN_S, _MAX_S = 0.1, 30.0


class EndPace:
    """The last ends of one tenant's sequences at one gateway."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, float]] = deque(maxlen=_MAX_ENDS)

    def note(self, num_sequences: float, now: float) -> None:
        """Sequences ended."""
        self._ends.append((now, num_sequences))

    def after_s(self, num_sequences: float, now: float) -> float:
        """Estimate of the seconds until so many more have ended."""
        recent = [(at, number) for at, number in self._ends if now - at <= _WINDOW_S]
        if len(recent) < 2:
            return _UNKNOWN_S
        per_s = sum(number for _, number in recent) / max(now - recent[0][0], 1e-3)
        return min(max(num_sequences / per_s, _MIN_S), _MAX_S)
