"""Turns of models that share a device: which one is awake, so that all progress and changes do not eat the device.

    another one's requests wait, and the resident one has had its time -> the one that has waited longest gets the turn
    no other one's requests wait                                        -> the resident one stays, busy or idle

A change costs the time to load, in which nothing is computed.  So a turn lasts ``min_residency_s``, or longer where
loading takes so long that it would be more than ``max_change_share`` of the time.  A resident model that is busy itself
keeps its turn for ``busy_residency_s``.  An example with 2 s, 10 s and a quarter, and changes of 1 s: a model that has
nothing more to do gives way 3 s after its turn began (1 s of 4 is a quarter), one that always has work after 10 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnConfig:
    """When models that share a device change places."""

    min_residency_s: Annotated[float, Ge(0)] = 2.0
    """A model that was woken stays awake for so long at least, whatever waits."""
    busy_residency_s: Annotated[float, Ge(0)] = 10.0
    """While it has requests of its own it stays for so long; then they wait for its next turn."""
    max_change_share: Annotated[float, Gt(0), Lt(1)] = 0.25
    """Part of the time that changes may take: turns last longer where loading takes long."""
    drain_s: Annotated[float, Ge(0)] = 5.0
    """At the end of a turn streams get so long to end by themselves; others go on at the next turn, token for token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharerSeen:
    """One of the models at one moment."""

    model: str
    """Its digest."""
    is_there: bool = True
    """Some worker of it has told what it does."""
    is_awake: bool = False
    """Some worker of it has its weights in memory."""
    num_waiting: int = 0
    """Requests that wait at routers."""
    oldest_s: float = 0.0
    """Seconds the oldest of them has waited."""
    is_busy: bool = False
    """Some run, or wait."""


class TurnPlanner:
    """Planner of one device; time is an argument."""

    def __init__(self, config: TurnConfig) -> None:
        self._config = config
        self._since = 0.0
        self._change_s = 0.0
        """Duration of the last change."""
        self.resident = ""
        """The model whose turn it is; empty before the first."""

    @property
    def least_s(self) -> float:
        """How long a turn lasts at least, as changes are now."""
        share = self._config.max_change_share
        return max(self._config.min_residency_s, self._change_s * (1 - share) / share)

    def changed(self, model: str, now: float, took_s: float) -> None:
        """A model has got its turn, after a change that took so long."""
        self.resident, self._since, self._change_s = model, now, took_s

    def decide(self, seen: Sequence[SharerSeen], now: float) -> str:
        """The model whose turn it should be; the resident one where nothing is to change."""
        is_clear = all(sharer.is_there for sharer in seen) or any(sharer.num_waiting for sharer in seen)
        if is_clear and not self.resident:
            self._find_resident(seen, now)
        waiting = [sharer for sharer in seen if sharer.num_waiting and sharer.model != self.resident]
        if not waiting:
            return self.resident
        own = next((sharer for sharer in seen if sharer.model == self.resident), None)
        if own is not None and now - self._since < self._turn_s(own):
            return self.resident
        return max(waiting, key=lambda sharer: sharer.oldest_s).model

    def _turn_s(self, own: SharerSeen) -> float:
        return max(self.least_s, self._config.busy_residency_s) if own.is_busy else self.least_s

    def _find_resident(self, seen: Sequence[SharerSeen], now: float) -> None:
        """One that is awake already has the device; of several the first.

        While workers of another one start, which of them keeps the device is not to be seen yet.
        """
        awake = next((sharer.model for sharer in seen if sharer.is_awake), "")
        if awake:
            self.resident, self._since = awake, now
