"""Promised p99s of windows that are over, in this gateway's metrics.

Nothing here decides about money: the store computes a window with each of its entries.  A window is looked at a while
after its end, by each gateway that wrote into it, and the first one that looks counts it.  A gateway that dies before
leaves it to the others, so at most the windows that it alone had written into are missing in the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.core.ledger.entry import LedgerEntry
from stratos.core.ledger.windows import PromiseWindow
from stratos.rpc.metrics import OTHER_TENANTS
from stratos.store.ledger.window_store import SettledWindow, WindowName, WindowStore, window_of
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
SETTLE_S = 60.0
"""From a window's end until it is looked at: a request is in the ledger once it has ended."""
_TURN_S = 1.0
_PER_TURN = 64
_MAX_REMEMBERED = 20_000
_SHOWN_WINDOWS = 3
"""Lengths of a window after which the p99 of one is shown no more, where none followed."""
Labels = tuple[str, str, str]


class PromiseWindows:
    """Belongs to the event loop.

    Args:
        store: where windows are.
        metrics: of the process.
        names: of all tenants, by id.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: WindowStore,
        metrics: GatewayMetrics,
        names: Callable[[], Mapping[str, str]],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._names = names
        self._wall_clock = wall_clock
        self._due_s: dict[WindowName, float] = {}
        self._shown: dict[Labels, tuple[int, float]] = {}
        """Number of the window whose p99 is shown, and until when."""

    def note(self, entry: LedgerEntry) -> None:
        """An entry is in the ledger."""
        if entry.window is None or len(self._due_s) >= _MAX_REMEMBERED:
            return
        name = window_of(entry)
        if name not in self._due_s:
            self._due_s[name] = max(self._wall_clock(), name.end_unix_s) + SETTLE_S

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
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s][:_PER_TURN]
        found = await self._store.settle(due)
        names = self._names() if found else {}
        for name in due:
            del self._due_s[name]
            if name in found:
                self._show(name, found[name], names.get(name.tenant, name.tenant), now_s)

    def _show(self, name: WindowName, settled: SettledWindow, tenant: str, now_s: float) -> None:
        window, label = settled.window, self._metrics.tenants.label_of(tenant)
        if settled.is_first and window.is_judged:
            self._metrics.promise_windows.labels(label, name.plan, "missed" if window.is_missed else "kept").inc()
            self._metrics.promise_window_credit.labels(label, name.plan).inc(window.credit / 1e6)
        if label == OTHER_TENANTS:  # of which there is no one value
            return
        for promise, p99_us in _p99s(window).items():
            labels = (label, name.plan, promise)
            if p99_us is not None and self._shown.get(labels, (0, 0.0))[0] <= name.number * name.window_s:
                until_s = now_s + _SHOWN_WINDOWS * name.window_s
                self._shown[labels] = (name.number * name.window_s, until_s)
                self._metrics.promise_window_p99.labels(*labels).set(p99_us / 1e6)

    def _forget_shown(self, now_s: float) -> None:
        for labels in [labels for labels, (_, until_s) in self._shown.items() if until_s <= now_s]:
            del self._shown[labels]
            self._metrics.promise_window_p99.remove(*labels)


def _p99s(window: PromiseWindow) -> Mapping[str, int | None]:
    return {"ttft": window.ttft_p99_us, "itl": window.itl_p99_us}
