"""One router: whether it answers, the calls that wait there, and what it is still to be told.

One task asks it again and again whether it serves and exchanges convictions with it, the first time before it is used.
It is the only one that dials while the router is away; calls that wait for a router therefore cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Protocol

from stratos.common.background import happens
from stratos.common.clock import Clock
from stratos.common.errors import Draining, StratosError, WorkerLost
from stratos.core.fleet import Fleet
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import AttemptReport, Placement, PlacementRequest
from stratos.core.requests.convictions import ConvictionTable, ConvictionUpdate
from stratos_gateway.access.task_end import TaskEnd
from stratos_gateway.routers.conviction_exchange import ConvictionExchange
from stratos_gateway.routers.outbox import Outbox
from stratos_gateway.routers.settings import RoutersConfig
from stratos_gateway.routers.silence import PATIENCE, answer_within

_log = logging.getLogger(__name__)
FIRST_BACKOFF_S = 0.05
IDLE_CHECK_S = 1.0
"""How often a router is asked at which no call waits; the first one that comes has it asked at once."""
FLUSH_TIMEOUT_S = 2.0
"""Longest wait for the last reports of a process that leaves."""


class _Abandoned(Exception):
    """A call that waits at a router waits elsewhere."""


class RouterPeer(Protocol):
    """Calls to one router; ``stratos.rpc.clients.router.RouterClient`` is one."""

    address: str

    async def schedule(self, request: PlacementRequest) -> Placement:
        """Wait for a placement."""
        ...

    async def complete(self, reports: Sequence[AttemptReport]) -> None:
        """Report how attempts ended."""

    async def exchange_convictions(self, update: ConvictionUpdate, *, timeout_s: float) -> ConvictionUpdate:
        """Tell what this gateway knows, and hear what others do."""
        ...

    async def forget_tenant(self, tenant: str) -> bool:
        """Have all workers drop what they cache of a tenant; raises ``WorkerLost``."""
        ...

    async def report_load(self, load: GatewayLoad, *, timeout_s: float) -> None:
        """Tell what this gateway is busy with."""

    async def fleet(self, *, timeout_s: float) -> Fleet:
        """Workers as it sees them; raises ``StratosError``."""
        ...

    async def is_serving(self, *, timeout_s: float) -> bool:
        """Whether it answers in time that it takes calls."""
        ...

    async def close(self) -> None:
        """End the connection."""


class RouterLink:
    """Belongs to the event loop.

    Args:
        peer: the router.
        config: when it is given up.
        convictions: of this gateway.
        clock: of the convictions.
        rng: jitter.
        on_change: called after ``is_up`` has changed.
        on_dropped: hears how many reports were given up.
    """

    def __init__(
        self,
        peer: RouterPeer,
        config: RoutersConfig,
        convictions: ConvictionTable,
        clock: Clock,
        rng: Random,
        on_change: Callable[[], None],
        on_dropped: Callable[[int], None],
    ) -> None:
        self._peer = peer
        self._config = config
        self._rng = rng
        self._on_change = on_change
        self._outbox = Outbox(peer.complete, on_dropped)
        exchange = partial(peer.exchange_convictions, timeout_s=PATIENCE * config.silence_timeout_s)
        self._exchange = ConvictionExchange(convictions, exchange, clock)
        self._up = asyncio.Event()
        self._doubted = asyncio.Event()
        self._called = asyncio.Event()
        """A call came since the last check."""
        self._calls: dict[TaskEnd, str] = {}
        """Name of the model that each call waits for."""

    @property
    def address(self) -> str:
        """host:port."""
        return self._peer.address

    @property
    def is_up(self) -> bool:
        """It answered the last time."""
        return self._up.is_set()

    async def schedule(self, request: PlacementRequest, model: str) -> Placement | None:
        """Wait for a placement; ``None`` when another router must be asked.

        Args:
            request: of an attempt.
            model: served name, by which calls are sent elsewhere together.

        Raises:
            StratosError: the router's refusal.
        """
        try:
            with TaskEnd() as end:
                self._calls[end] = model
                self._called.set()
                try:
                    return await self._peer.schedule(request)
                finally:
                    del self._calls[end]
        except (WorkerLost, Draining) as error:
            self._doubt(error.message)
        except _Abandoned:
            pass
        return None

    def abandon(self) -> None:
        """Send the calls that wait here elsewhere; a router that only stood still sees them cancelled."""
        self.abandon_unless(lambda model: False)

    def abandon_unless(self, stays: Callable[[str], bool]) -> None:
        """Send calls that wait here elsewhere, but for those whose model stays."""
        gone = {model for model in set(self._calls.values()) if not stays(model)}
        for end, model in self._calls.items():
            if model in gone:
                end(_Abandoned())

    def report(self, report: AttemptReport) -> None:
        """Tell the router how an attempt ended, now or when it is back."""
        self._outbox.add(report)

    async def exchange_convictions(self) -> bool:
        """Tell the router of new convictions and hear of others'; whether it has them all."""
        try:
            await self._exchange.run()
        except StratosError as error:
            _log.debug("router %s did not take convictions: %s", self.address, error.message)
            return False
        return True

    async def forget_tenant(self, tenant: str) -> bool:
        """Have all workers drop what they cache of a tenant; false where one did not answer. Raises ``WorkerLost``."""
        return await self._peer.forget_tenant(tenant)

    async def fleet(self) -> Fleet:
        """Workers as the router sees them; raises ``StratosError``."""
        return await self._peer.fleet(timeout_s=PATIENCE * self._config.silence_timeout_s)

    async def report_load(self, load: GatewayLoad) -> None:
        """Tell the router what this gateway is busy with; one that does not answer hears of it the next time."""
        with contextlib.suppress(StratosError):
            await self._peer.report_load(load, timeout_s=self._config.silence_timeout_s)

    async def run(self) -> None:
        """Watch the router, and send reports, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name=f"watch router {self.address}")
            group.create_task(self._send_reports(), name=f"report to router {self.address}")

    async def close(self) -> None:
        """Send what is left, and end the connection."""
        with contextlib.suppress(StratosError, TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._outbox.flush()
        await self._peer.close()

    async def _watch(self) -> None:
        num_failures = 0
        while True:
            is_serving = await answer_within(self._check(), self._config.silence_timeout_s)
            self._set_up(is_serving, "it does not answer")
            if is_serving and not await self._is_doubted():
                num_failures = 0  # up for a whole interval, with calls that went well
                continue
            num_failures += 1
            await asyncio.sleep(self._backoff_s(num_failures))

    async def _check(self) -> bool:
        """It serves, and knows all convictions."""
        is_serving = await self._peer.is_serving(timeout_s=PATIENCE * self._config.silence_timeout_s)
        return is_serving and await self.exchange_convictions()

    async def _is_doubted(self) -> bool:
        """Wait for the next check; ``True`` when a call failed before."""
        self._doubted.clear()
        self._called.clear()
        await happens(self._doubted, self._config.check_interval_s)
        if not (self._doubted.is_set() or self._calls or self._called.is_set()):
            await happens(self._called, IDLE_CHECK_S - self._config.check_interval_s)
        return self._doubted.is_set()

    def _backoff_s(self, num_failures: int) -> float:
        longest = min(self._config.max_backoff_s, FIRST_BACKOFF_S * 2.0 ** min(num_failures - 1, 16))
        return longest * self._rng.uniform(0.5, 1.0)

    async def _send_reports(self) -> None:
        while True:
            await self._outbox.wait()
            await self._up.wait()
            try:
                await self._outbox.flush()
            except (WorkerLost, Draining) as error:
                self._doubt(error.message)

    def _doubt(self, why: str) -> None:
        self._set_up(False, why)
        self._doubted.set()

    def _set_up(self, is_up: bool, why: str) -> None:
        if is_up == self.is_up:
            return
        if is_up:
            self._up.set()
            _log.info("router %s answers", self.address)
        else:
            self._up.clear()
            _log.warning("router %s is away: %s", self.address, why)
        self._on_change()
