"""Usage of ended attempts, kept until a gateway reports that the ledger has it.

    an attempt ends ──▶ held, sent to its gateway's session ──▶ UsageAck: forgotten
                          │ the session breaks
                          └──▶ after a while offered to another session, and after a longer while to the next one

So a request is billed when its gateway dies between its last token and its entry.  Which of several entries of one
request counts is the ledger's business: an offer that turns out to be one too many does no harm.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.ledger.usage import UsageCount
from stratos.core.requests.records import RequestKey
from stratos.worker.meters.settings import UsageConfig

_POLL_S = 0.02


class UsageListener(Protocol):
    """A gateway's session; ``session.Session`` is the one of a worker."""

    def report(self, counts: list[UsageCount]) -> None:
        """Send counts along with what is sent next."""
        ...


class DropCount(Protocol):
    """A counter."""

    def inc(self, amount: float = 1) -> None:
        """Count."""
        ...


@dataclass(slots=True)
class _Held:
    count: UsageCount
    owner: UsageListener | None
    ended_s: float
    due_s: float
    """When it is offered, where it has no owner."""
    num_choices: int


class UsageLog:
    """Belongs to the event loop.

    Args:
        clock: of this worker.
        config: bounds.
        dropped: counts that were given up before anyone acknowledged them.
    """

    def __init__(self, clock: Clock, config: UsageConfig, dropped: DropCount) -> None:
        self._clock = clock
        self._config = config
        self._dropped = dropped
        self._held: OrderedDict[RequestKey, _Held] = OrderedDict()
        self._attempts: dict[str, set[int]] = {}
        self._listeners: dict[UsageListener, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def join(self, listener: UsageListener) -> None:
        """A gateway opened a session."""
        self._listeners[listener] = None

    def leave(self, listener: UsageListener) -> None:
        """The session broke: its counts have no owner from now on."""
        self._listeners.pop(listener, None)
        due_s = self._clock.now() + self._config.claim_after_s
        for held in self._held.values():
            if held.owner is listener:
                held.owner, held.due_s = None, due_s

    def add(self, count: UsageCount, owner: UsageListener | None, *, num_choices: int = 1) -> None:
        """An attempt has ended; without an owner, its gateway has been gone for long enough."""
        now_s = self._clock.now()
        if count.key in self._held:
            self._forget(count.key)
        self._held[count.key] = _Held(count, owner, now_s, now_s, num_choices)
        self._attempts.setdefault(count.key.request_id, set()).add(count.key.attempt)
        if owner is not None:
            owner.report([count])
        while len(self._held) > self._config.max_counts:
            self._drop(next(iter(self._held)))

    def correct(self, key: RequestKey, choices: Mapping[int, int | None]) -> None:
        """Its gateway had ended the only choice of an attempt that has ended here: no more than that is charged."""
        held = self._held.get(key)
        if held is not None and held.num_choices == len(choices) == 1:
            [num_kept] = choices.values()
            if num_kept is not None:
                num_tokens = min(held.count.num_output_tokens, num_kept)
                held.count = replace(held.count, num_output_tokens=num_tokens)

    def acknowledge(self, request_ids: Iterable[str]) -> None:
        """The ledger has these, whichever gateway reports it."""
        for request_id in request_ids:
            for attempt in self._attempts.pop(request_id, ()):
                del self._held[RequestKey(request_id, attempt)]

    def offer(self) -> None:
        """Offer what has no owner, and drop what is too old; called often."""
        now_s = self._clock.now()
        while self._held:
            key, oldest = next(iter(self._held.items()))
            if now_s - oldest.ended_s < self._config.max_age_s:
                break
            self._drop(key)
        if not self._listeners:
            return
        due = [held for held in self._held.values() if held.owner is None and held.due_s <= now_s]
        if due:
            listener = next(iter(self._listeners))
            self._listeners[listener] = self._listeners.pop(listener)  # the next offer goes to the next one
            for held in due:
                held.due_s = now_s + self._config.offer_interval_s
            listener.report([held.count for held in due])

    async def wait_settled(self) -> None:
        """Wait until nothing is held, but not for long: for a worker that leaves."""
        deadline_s = self._clock.now() + self._config.settle_timeout_s
        while self._held and self._listeners and self._clock.now() < deadline_s:
            self.offer()
            await asyncio.sleep(_POLL_S)

    def _drop(self, key: RequestKey) -> None:
        self._forget(key)
        self._dropped.inc()

    def _forget(self, key: RequestKey) -> None:
        del self._held[key]
        attempts = self._attempts[key.request_id]
        attempts.discard(key.attempt)
        if not attempts:
            del self._attempts[key.request_id]
