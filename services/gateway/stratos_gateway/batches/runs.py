"""Root task that computes batches, while there is room: tenants have turns, and each turn is a slice of one batch."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from redis.exceptions import RedisError

from stratos.common.background import BackgroundTasks, end_tasks, happens
from stratos.common.clock import Clock
from stratos.common.errors import DependencyDown, NotFound, Retryable, StratosError
from stratos.store.sealed.batch_store import FINAL, BatchStore
from stratos.store.sealed.file_store import StoredFile
from stratos_gateway.access.auth import Recall
from stratos_gateway.batches.calls import LineCalls
from stratos_gateway.batches.courtesy import Courtesy
from stratos_gateway.batches.finals import FinalRun
from stratos_gateway.batches.gate import LineGate
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.batches.slices import NO_INPUT, BatchWork, SliceIndex, SliceRun, gone
from stratos_gateway.metrics import DAY_S, GatewayMetrics
from stratos_gateway.observe.recent_load import BACKLOG_KEPT_S

_log = logging.getLogger(__name__)
_MAX_BATCHES = 10_000
"""Open batches among which tenants are found."""
_MAX_LOOKS = 64
"""Batches that are looked at before the next wait."""
_MAX_WORKS = 16
"""Batches whose indexes are remembered."""
_MAX_SLICES = 8
_SHOW_S = 5.0
"""Between two counts of what waits."""


class BatchRuns:
    """Belongs to the event loop.

    Args:
        store: of all gateways.
        recall: finds tenants.
        calls: answers lines.
        config: how much at a time.
        kept_s: seconds that results are kept.
        clock: monotonic.
        metrics: show what waits.
        on_backlog: told how many lines wait, and how many of them are due within an hour.
        client_age_s: since a request above the batch class was open.
    """

    def __init__(
        self,
        store: BatchStore,
        recall: Recall,
        calls: LineCalls,
        config: BatchesConfig,
        kept_s: float,
        clock: Clock,
        metrics: GatewayMetrics,
        on_backlog: Callable[[int, int], None] = lambda num_lines, num_due: None,
        client_age_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._metrics = metrics
        self._on_backlog = on_backlog
        self._clock = clock
        self._shown_s = self._known_s = float("-inf")
        self._store = store
        self._recall = recall
        self._calls = calls
        self._config = config
        self._kept_s = kept_s
        self._gate = LineGate(
            max(1, config.running), clock, metrics, config.pace_s, Courtesy(client_age_s, config.late_s)
        )
        self._looks: dict[str, int] = {}
        """Number of the last look at a batch of each tenant that has one."""
        self._num_looks = 0
        self._open: dict[asyncio.Task[None], tuple[str, str, tuple[int, int]]] = {}
        """Tenant, batch and claim of each slice."""
        self._tasks = BackgroundTasks()
        self._works: dict[str, BatchWork] = {}
        self._news = asyncio.Event()
        self._is_leaving = config.running == 0

    async def run(self) -> None:
        """Root task."""
        while True:
            if not self._is_leaving:
                try:
                    await self.turn()
                except (DependencyDown, RedisError) as error:
                    _log.debug("batches wait: %s", error)
            await happens(self._news, self._config.poll_s)
            self._news.clear()

    async def leave(self) -> None:
        """Take no more, and give up slices that run: other gateways begin them again."""
        self._is_leaving = True
        left = dict(self._open)
        await end_tasks(left)
        with suppress(DependencyDown, RedisError, TimeoutError):  # else they are free once their leases have ended
            async with asyncio.timeout(1.0):
                for tenant_id, batch_id, claim in left.values():
                    await self._store.renew(tenant_id, batch_id, claim, 0.0)

    async def turn(self) -> None:
        """Begin slices of tenants in turn, while there is room; raises ``DependencyDown``."""
        await self._show()
        if not self._has_room:
            return  # which tenant was looked at when stays known
        waiting = _by_tenant(await self._store.open_batches(_MAX_BATCHES))
        self._looks = {name: self._looks[name] for name in waiting if name in self._looks}
        for _ in range(_MAX_LOOKS):
            if not waiting or not self._has_room:
                break
            tenant_id = min(waiting, key=lambda name: self._looks.get(name, 0))
            batch_id = waiting[tenant_id].popleft()
            self._num_looks += 1
            self._looks[tenant_id] = self._num_looks
            claim = await self._store.claim(tenant_id, batch_id, self._config.lease_s)
            if claim is not None:
                waiting[tenant_id].append(batch_id)
                self._begin(tenant_id, batch_id, claim)
            elif not waiting[tenant_id]:
                del waiting[tenant_id]

    def _begin(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> None:
        task = asyncio.create_task(self._work(tenant_id, batch_id, claim), name="slice of a batch")
        self._open[task] = tenant_id, batch_id, claim
        task.add_done_callback(self._end)
        self._tasks.own(task)

    async def _show(self) -> None:
        if self._clock.now() < self._shown_s + _SHOW_S:
            return
        self._shown_s = self._clock.now()
        try:
            backlog = await self._store.backlog()
        except (DependencyDown, RedisError):
            if self._shown_s - self._known_s > BACKLOG_KEPT_S:
                for gauge in (self._metrics.batch_lines_waiting, self._metrics.batch_lines_due):
                    gauge.set(float("nan"))
            raise
        self._known_s = self._shown_s
        self._metrics.batch_lines_waiting.set(backlog.num_lines)
        self._metrics.batch_lines_due.set(backlog.num_due)
        self._metrics.batch_window_left.set(DAY_S if backlog.left_s is None else backlog.left_s)
        self._on_backlog(backlog.num_lines, backlog.num_due)

    @property
    def _has_room(self) -> bool:
        # As many slices as keep all places busy at the end of one of them.
        return len(self._open) < min(_MAX_SLICES, 2 + self._gate.limit // 8)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._news.set()

    async def _work(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> None:
        with suppress(DependencyDown, RedisError):  # the slice is free once its lease has ended
            try:
                await self._try(tenant_id, batch_id, claim)
            except (StratosError, RedisError, ExceptionGroup) as error:
                await self._settle(tenant_id, batch_id, claim, _first(error))

    async def _try(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> None:
        work = await self._find(tenant_id, batch_id, is_final=claim[0] == FINAL)
        if claim[0] == FINAL:
            await FinalRun(work, claim[1], self._config.lease_s, self._kept_s).run()
        else:
            config = self._config
            run = SliceRun(work, claim, self._calls, self._gate, config.lease_s, by_prefix=config.prefix_order)
            await run.run()

    async def _settle(self, tenant_id: str, batch_id: str, claim: tuple[int, int], error: BaseException) -> None:
        """End a batch whose input is gone, with what was answered; or leave the slice to the next gateway after a
        lease."""
        if isinstance(error, NotFound):
            _log.info("batch %s fails: %s", batch_id, error)
            if claim[0] == FINAL:  # its results are gone
                await self._store.finish(tenant_id, batch_id, claim, "failed", problem=str(error))
            else:
                await self._store.fail(tenant_id, batch_id, claim, str(error))
        elif isinstance(error, Retryable | RedisError):
            _log.info("slice %d of batch %s is given up: %s", claim[0], batch_id, error)
            await self._store.renew(tenant_id, batch_id, claim, self._config.lease_s)
        else:
            raise error

    async def _find(self, tenant_id: str, batch_id: str, *, is_final: bool) -> BatchWork:
        """The batch and its input; as it was when it was looked at first, unless its files are made, for which it needs
        no input."""
        if batch_id in self._works and not is_final:
            return self._works[batch_id]
        batch = await self._store.find(tenant_id, batch_id)
        if batch is None:
            raise gone()
        try:
            file, index = await self._input(tenant_id, batch.head.input_file_id)
        except NotFound:
            if not is_final:
                raise
            file, index = None, NO_INPUT
        recall = partial(self._recall, batch.head.tenant_name, tenant_id, batch.head.key_id)
        work = self._works[batch_id] = BatchWork(tenant_id, batch, index, self._store, recall, file)
        while len(self._works) > _MAX_WORKS:
            del self._works[next(iter(self._works))]
        return work

    async def _input(self, tenant_id: str, file_id: str) -> tuple[StoredFile | None, SliceIndex]:
        files = self._store.files
        if (file := await files.find(tenant_id, file_id)) is None:
            raise gone()
        try:
            return file, SliceIndex.parse(await files.read_index(tenant_id, file), file.num_bytes)
        except NotFound as error:
            raise gone() from error


def _by_tenant(batches: Iterable[tuple[str, str]]) -> dict[str, deque[str]]:
    found: dict[str, deque[str]] = {}
    for tenant_id, batch_id in batches:
        found.setdefault(tenant_id, deque()).append(batch_id)
    return found


def _first(error: BaseException) -> BaseException:
    """The error itself, or the first one of those that ended side by side."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
