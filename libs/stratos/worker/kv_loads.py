"""KV that lies on disk is asked for before a request is queued, and never waited for longer than is promised.

A request waits here, outside of the engine, so that no step does.  A disk that hangs holds a thread of the engine for
good; it is asked again a while later, by one request.
"""

from __future__ import annotations

import asyncio
import logging

from stratos.common.clock import Clock
from stratos.core.requests.terms import RequestTerms
from stratos.engine.settings import DiskTierConfig
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.metrics import WorkerMetrics

_log = logging.getLogger(__name__)
PAUSE_S = 30.0


class KvLoads:
    """Belongs to the event loop.

    Args:
        engine: has the disk tier, where it is on.
        config: of the tier.
        clock: of the pauses.
        metrics: of the worker.
    """

    def __init__(self, engine: EngineClient, config: DiskTierConfig, clock: Clock, metrics: WorkerMetrics) -> None:
        self._engine, self._config, self._clock, self._metrics = engine, config, clock, metrics
        self._asks_again_s = float("-inf")

    async def load(self, token_ids: tuple[int, ...], terms: RequestTerms) -> None:
        """Bring what disk has of a prompt to host memory, where that is faster than computing it.

        Raises:
            WorkerLost: the engine has stopped.
        """
        if not self._config.is_on or self._clock.now() < self._asks_again_s:
            return
        try:
            async with asyncio.timeout(self._config.load_timeout_s):
                await self._engine.load_blocks(token_ids, terms)
        except TimeoutError:
            self._asks_again_s = self._clock.now() + PAUSE_S
            self._metrics.disk_timeouts.inc()
            _log.warning("the disk of the KV tier does not answer; prompts are computed for %.0f s", PAUSE_S)
