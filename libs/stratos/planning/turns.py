"""Turns of models that share a device: which one is awake, so that all progress and changes do not eat the device.

    another one's requests wait, and the resident one has had its time -> the one that has waited longest gets the turn
    no other one's requests wait                                        -> the resident one stays, busy or idle

Lines of batches are worth no turn while clients of the resident model come: they wait for a pause of these, and no
longer than ``batch_patience_s``.

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

CLIENT_PAUSE_S = 2.0
"""Gateways say once a second whether they have clients: within less than this nothing is known."""
BATCH_GAP_S = 60.0
"""Without a line for so long the wait of a model's batches is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnConfig:
    """When models that share a device change places."""

    min_residency_s: Annotated[float, Ge(0)] = 2.0
    """A model that was woken stays awake for so long at least, whatever waits."""
    busy_residency_s: Annotated[float, Ge(0)] = 10.0
    """While it has requests of its own it stays for so long; then they wait for its next turn."""
    max_change_share: Annotated[float, Gt(0), Lt(1)] = 0.25
    """Part of the time that changes may take: turns last longer where loading takes long."""
    batch_patience_s: Annotated[float, Ge(0)] = 30.0
    """Batches wait so long at most while clients of the awake model come; with 0 they ask for a turn as clients do."""
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
    """Requests of clients that wait at routers."""
    oldest_s: float = 0.0
    """Seconds the oldest of them has waited."""
    num_batch_waiting: int = 0
    """Requests of the batch class that wait at routers."""
    is_busy: bool = False
    """Some run, or wait."""
    client_age_s: float = float("inf")
    """Since a request of a client was open; 0 while one is, infinity where the last minute had none."""


class TurnPlanner:
    """Planner of one device; time is an argument."""

    def __init__(self, config: TurnConfig) -> None:
        self._config = config
        self._since = 0.0
        self._change_s = 0.0
        """Duration of the last change."""
        self._batches: dict[str, tuple[float, float]] = {}
        """Models with batches that wait for a turn: since when, and when they were seen last."""
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
        self._batches.pop(model, None)

    def decide(self, seen: Sequence[SharerSeen], now: float) -> str:
        """The model whose turn it should be; the resident one where nothing is to change."""
        is_clear = all(sharer.is_there for sharer in seen) or any(sharer.num_waiting for sharer in seen)
        if is_clear and not self.resident:
            self._find_resident(seen, now)
        self._note_batches(seen, now)
        own = next((sharer for sharer in seen if sharer.model == self.resident), None)
        claims = {sharer.model: self._claim(sharer, own, now) for sharer in seen if sharer.model != self.resident}
        waiting = {model: claim for model, claim in claims.items() if claim is not None}
        if not waiting or (own is not None and now - self._since < self._turn_s(own)):
            return self.resident
        return max(waiting, key=lambda model: waiting[model])

    def _claim(self, sharer: SharerSeen, own: SharerSeen | None, now: float) -> tuple[bool, float] | None:
        """Claim of a model to a turn, the larger the better; ``None`` where it is worth none now.

        Returns:
            Whether clients wait, or batches that have waited long enough, and for how many seconds.
        """
        if sharer.num_waiting:
            return True, sharer.oldest_s
        if sharer.model not in self._batches or not sharer.num_batch_waiting:
            return None
        waited_s = now - self._batches[sharer.model][0]
        has_clients = own is not None and own.client_age_s < max(self.least_s, CLIENT_PAUSE_S)
        is_due = waited_s >= self._config.batch_patience_s
        return (is_due, waited_s) if is_due or not has_clients else None

    def _note_batches(self, seen: Sequence[SharerSeen], now: float) -> None:
        """Lines that gave up at a router come again a moment later: that is one wait."""
        for sharer in seen:
            if sharer.num_batch_waiting and sharer.model != self.resident:
                self._batches[sharer.model] = self._batches.get(sharer.model, (now, now))[0], now
        self._batches = {m: times for m, times in self._batches.items() if now - times[1] <= BATCH_GAP_S}

    def _turn_s(self, own: SharerSeen) -> float:
        return max(self.least_s, self._config.busy_residency_s) if own.is_busy else self.least_s

    def _find_resident(self, seen: Sequence[SharerSeen], now: float) -> None:
        """One that is awake already has the device; of several the first.

        While workers of another one start, which of them keeps the device is not to be seen yet.
        """
        awake = next((sharer.model for sharer in seen if sharer.is_awake), "")
        if awake:
            self.resident, self._since = awake, now
