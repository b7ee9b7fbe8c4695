"""KV that lies on disk is asked for before a request is queued, and never waited for longer than is promised.

A request waits here, outside of the engine, so that no step does; one of which disk has nothing does not wait.  As many
read at the same time as the engine has threads for it; the others wait for their turn, for no longer than computing
takes.  A disk that hangs holds a thread of the engine for good; it is asked again a while later, by one request.
"""

from __future__ import annotations

import asyncio
import logging

from stratos.common.clock import Clock
from stratos.core.requests.terms import RequestTerms
from stratos.engine.settings import DiskTierConfig
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.thread import NUM_DISK_THREADS
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
        self._turns = asyncio.Semaphore(NUM_DISK_THREADS)
        self._asks_again_s: float | None = None
        """The disk hung, and is left alone until then."""

    async def load(self, token_ids: tuple[int, ...], terms: RequestTerms) -> None:
        """Bring what disk has of a prompt to host memory, where that is faster than computing it.

        Raises:
            WorkerLost: the engine has stopped.
        """
        if not self._config.is_on:
            return
        worth_s = await self._engine.disk_worth_s(token_ids, terms)
        if not worth_s or not self._may_ask():
            return
        left_s = terms.left_s(self._clock.now())
        timeout_s = self._config.load_timeout_s if left_s is None else min(self._config.load_timeout_s, left_s / 2)
        is_asked = False
        try:
            async with asyncio.timeout(min(timeout_s, worth_s)) as bound, self._turns:
                is_asked = True
                bound.reschedule(asyncio.get_running_loop().time() + timeout_s)
                await self._engine.load_blocks(token_ids, terms)
                self._asks_again_s = None
        except TimeoutError:
            self._metrics.disk_timeouts.inc()
            if is_asked and timeout_s == self._config.load_timeout_s:
                self._asks_again_s = self._clock.now() + PAUSE_S
                _log.warning("the disk of the KV tier does not answer; prompts are computed for %.0f s", PAUSE_S)

    def _may_ask(self) -> bool:
        """The disk answered lately, or it is time for one request to ask again."""
        if self._asks_again_s is None:
            return True
        if self._clock.now() < self._asks_again_s:
            return False
        self._asks_again_s = self._clock.now() + PAUSE_S  # the others do not wait for this one's answer
        return True
