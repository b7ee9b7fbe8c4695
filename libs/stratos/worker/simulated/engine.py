"""An engine whose steps are events of the event loop, so that a thousand of them need no thread.

The fake runner computes a step in microseconds; the engine's own clock then moves by the cost model's duration, and the
result is published when the real time has caught up.  A call that comes before takes effect in the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from stratos.common.clock import Clock, FakeClock
from stratos.common.errors import WorkerLost
from stratos.core.device.payload import Payload
from stratos.core.kv import KvGeometry, KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.plan import StepPlan
from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.sim.runner import StepCosts
from stratos.worker.engine_client.base import STOPPED, EngineClient

IDLE_POLL_S = 0.02
"""Nothing could run although something waits: looked at again after this time."""
SLOW_METHODS = frozenset({"prepare_grammar", "load_adapter"})
"""They read files, so they run in a thread, beside steps as the engine's contract allows."""


class TimedRunner(FakeRunner):
    """The fake runner, whose steps move a clock.

    Args:
        config: what it computes.
        costs: how long a step takes.
        clock: of the engine.
    """

    def __init__(self, config: FakeConfig, costs: StepCosts, clock: FakeClock) -> None:
        super().__init__(config)
        self._costs, self._clock = costs, clock

    def launch(self, plan: StepPlan) -> Any:
        handle = super().launch(plan)
        self._clock.advance(self._costs.seconds(plan))
        return handle


class SimulatedEngine(EngineClient):
    """Belongs to the event loop that calls ``start``.

    Args:
        config: of the runner.
        costs: how long a step takes.
        scheduler: of the engine.
        clock: real time.
        transports: of the data port, for KV of the geometry that it is called with.
    """

    has_device_pages = False

    def __init__(
        self,
        config: FakeConfig,
        costs: StepCosts,
        scheduler: SchedulerConfig,
        clock: Clock,
        transports: Callable[[KvGeometry], Mapping[str, PortTransport]] = lambda _: {},
    ) -> None:
        super().__init__()
        self._clock = clock
        self._engine_clock = FakeClock(start=clock.now())
        self._engine = EngineCore(TimedRunner(config, costs, self._engine_clock), scheduler, self._engine_clock)
        self.info = self._engine.info
        self.data_port = LocalPort(transports(self.info.geometry), self)
        self._timer: asyncio.Handle | None = None
        """The begin or the end of a step; there is none while nothing is to be done."""
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop
        self._failed: asyncio.Future[None]

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self.data_port.close()
        if self._timer is not None:
            self._timer.cancel()
        self._failed.cancel()

    def status(self) -> EngineStatus:
        return self._engine.status()

    async def wait_failed(self) -> None:
        await asyncio.shield(self._failed)

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        assert not on_device, "it has none"
        return await self._call("gather", leg, kv_range), None

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        await self._call("scatter", key, kv_range, payload)
        return None

    async def _call(self, method: str, *arguments: Any) -> Any:
        if not self._is_open:
            raise WorkerLost(STOPPED)
        function = getattr(self._engine, method)
        if method in SLOW_METHODS:
            return await asyncio.to_thread(function, *arguments)
        self._catch_up()
        try:
            return function(*arguments)
        finally:
            self._wake()

    def _post(self, method: str, *arguments: Any) -> None:
        if self._is_open:
            self._catch_up()
            getattr(self._engine, method)(*arguments)
            self._wake()

    def _catch_up(self) -> None:
        """Real time has passed; within a step the engine's clock is ahead."""
        self._engine_clock.advance(max(0.0, self._clock.now() - self._engine_clock.now()))

    def _wake(self) -> None:
        if self._is_open and self._timer is None and self._engine.has_work:
            self._timer = self._loop.call_soon(self._begin_step)

    def _begin_step(self) -> None:
        self._catch_up()
        try:
            result = self._engine.step()
        except Exception as error:  # the step loop's end, which the process must learn
            self._is_open = False
            self._failed.set_exception(error)
            self._failed.exception()  # mark as seen: the waiting task raises it
            return
        left_s = IDLE_POLL_S if result.is_idle else self._engine_clock.now() - self._clock.now()
        self._timer = self._loop.call_later(max(left_s, 0.0), self._end_step, result)

    def _end_step(self, result: StepResult) -> None:
        self._timer = None
        if result.has_news:
            self._publish(result)
        self._wake()
