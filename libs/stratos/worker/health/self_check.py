"""Whether an idle engine still computes: a real token, or vector, now and then; its outcome is part of readiness.

While requests run, their own steps show it (``StepWatch``), and nothing is computed here.
"""

from __future__ import annotations

import asyncio
import logging

from stratos.common.clock import Clock
from stratos.common.errors import StratosError
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.warm_up import run_probe

_log = logging.getLogger(__name__)


class SelfCheck:
    """Belongs to the event loop; ``reason`` may be called from any thread.

    Args:
        engine: a started one.
        clock: of its waits.
        interval_s: time between two looks.
        limit_s: a token that takes longer means that the engine hangs.
        turn: held during a look; nothing looks while something else holds it.
    """

    def __init__(
        self,
        engine: EngineClient,
        clock: Clock,
        interval_s: float,
        limit_s: float,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self._turn = turn or asyncio.Lock()
        self._engine = engine
        self._clock = clock
        self._interval_s = interval_s
        self._limit_s = limit_s
        self._last_step = -1
        self._began_s: float | None = None
        self._problem = ""
        self._num_checks = 0

    def reason(self, now_s: float) -> str:
        """Why the engine is not to be trusted; "" while it computes."""
        began_s = self._began_s
        if began_s is not None and now_s - began_s > self._limit_s:
            return f"the idle engine has not computed a token for {now_s - began_s:.1f} s"
        return self._problem

    async def run(self) -> None:
        """Root task: look every ``interval_s``, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()

    async def look(self) -> None:
        """Compute a token, unless the engine has done steps since the last look."""
        async with self._turn:
            await self._look()

    async def _look(self) -> None:
        status = self._engine.status()
        if status.step != self._last_step or status.num_running or status.num_waiting:
            self._last_step, self._problem = status.step, ""
            return
        self._began_s, problem = self._clock.now(), ""
        try:
            self._num_checks += 1
            await run_probe(self._engine, f"self-check-{self._num_checks}", 1, self._began_s)
        except StratosError as error:
            problem = f"the idle engine computes no token: {error.message}"
            _log.error("%s", problem)
        finally:
            self._began_s = None
        self._problem, self._last_step = problem, self._engine.status().step
