"""Promised p99s in this gateway's metrics: of windows that run, and of each that is over whether it missed.

Nothing here decides about money: the store computes a window with each of its entries.  Each gateway looks at the
windows that it writes into, and a while after the end of one the first of them counts it.  A gateway that dies before
leaves that to the others, so at most the windows that it alone had written into are missing in the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry
from stratos.rpc.metrics import OTHER_TENANTS
from stratos.store.ledger.window_store import SeenWindow, WindowName, WindowStore, window_of
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
SETTLE_S = 60.0
"""From the end of a window until it is counted: a request is in the ledger once it has ended."""
LOOK_S = 15.0
"""Between two looks at a window that runs."""
_TURN_S = 1.0
_PER_TURN = 64
_MAX_REMEMBERED = 20_000
_SHOWN_WINDOWS = 3
"""Lengths of a window after which its p99 is shown no more, where none followed."""
Labels = tuple[str, str, str]


@dataclass(slots=True)
class _Watch:
    due_s: float
    has_news: bool = True
    """It has entries that were not there at the last look."""


class PromiseWindows:
    """Belongs to the event loop.

    Args:
        store: where windows are.
        metrics: of the process.
        name_of: a tenant by its id, if there is one.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: WindowStore,
        metrics: GatewayMetrics,
        name_of: Callable[[str], str | None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._name_of = name_of
        self._wall_clock = wall_clock
        self._watched: dict[WindowName, _Watch] = {}
        self._shown: dict[Labels, tuple[int, float]] = {}
        """Beginning of the window whose p99 is shown, and until when."""

    def note(self, entry: LedgerEntry) -> None:
        """An entry is in the ledger."""
        if entry.window is None:
            return
        name = window_of(entry)
        if (found := self._watched.get(name)) is not None:
            found.has_news = True
        elif len(self._watched) < _MAX_REMEMBERED:
            self._watched[name] = _Watch(self._wall_clock())

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(_TURN_S)
            try:
                await self.turn()
            except (DependencyDown, RedisError) as error:
                _log.debug("windows of promises are looked at later: %s", error)

    async def turn(self) -> None:
        """Look at some windows that are due; raises ``DependencyDown``."""
        now_s = self._wall_clock()
        self._forget_shown(now_s)
        due = [name for name, watch in self._watched.items() if watch.due_s <= now_s][:_PER_TURN]
        asked = {name: now_s >= _over_s(name) for name in due}
        asked = {name: is_over for name, is_over in asked.items() if is_over or self._watched[name].has_news}
        for name in asked:
            self._watched[name].has_news = False
        found = await self._store.look(asked)
        for name in due:
            self._put_off(name, now_s)
        for name, seen in found.items():
            tenant = self._name_of(name.tenant) or name.tenant
            self._show(name, seen, self._metrics.tenants.label_of(tenant), now_s)

    def _put_off(self, name: WindowName, now_s: float) -> None:
        if now_s >= _over_s(name):
            del self._watched[name]
        else:
            self._watched[name].due_s = min(now_s + LOOK_S, _over_s(name))

    def _show(self, name: WindowName, seen: SeenWindow, label: str, now_s: float) -> None:
        window, credit = seen.window, self._metrics.promise_window_credit.labels(label, name.plan)
        ends = {outcome: self._metrics.promise_windows.labels(label, name.plan, outcome) for outcome in _OUTCOMES}
        if seen.is_counted and window.is_judged:  # else they are there: a rate needs the zero before
            ends[_OUTCOMES[window.is_missed]].inc()
            credit.inc(window.credit / 1e6)
        if label == OTHER_TENANTS:  # of which there is no one value
            return
        begin_s = name.number * name.window_s
        for promise, p99_us in (("ttft", window.ttft_p99_us), ("itl", window.itl_p99_us)):
            labels = (label, name.plan, promise)
            if p99_us is not None and self._shown.get(labels, (0, 0.0))[0] <= begin_s:
                self._shown[labels] = (begin_s, now_s + _SHOWN_WINDOWS * name.window_s)
                self._metrics.promise_window_p99.labels(*labels).set(p99_us / 1e6)

    def _forget_shown(self, now_s: float) -> None:
        for labels in [labels for labels, (_, until_s) in self._shown.items() if until_s <= now_s]:
            del self._shown[labels]
            self._metrics.promise_window_p99.remove(*labels)


_OUTCOMES = ("kept", "missed")


def _over_s(name: WindowName) -> float:
    return name.end_unix_s + SETTLE_S
