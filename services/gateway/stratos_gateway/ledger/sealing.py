"""Moves entries of the ledger to the object store in the background, and shows how far behind that is."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from stratos.common.errors import StratosError
from stratos.store.ledger.sealer import Sealer
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)


class Sealing:
    """Belongs to the event loop.

    Args:
        sealer: of this gateway.
        metrics: of the process.
        poll_s: between two looks.
    """

    def __init__(self, sealer: Sealer, metrics: GatewayMetrics, poll_s: float) -> None:
        self._sealer = sealer
        self._metrics = metrics
        self._poll_s = poll_s
        self._problem = ""

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._poll_s)
            await self.turn()

    async def turn(self) -> None:
        """Seal what is due; what fails is tried again."""
        problem = ""
        try:
            await self._sealer.turn()
        except (StratosError, RedisError, OSError) as error:
            problem = str(error)
            if problem != self._problem:
                _log.warning("entries of the ledger stay in Redis: %s", problem)
        self._problem = problem
        try:
            self._metrics.ledger_unsealed.set(await self._sealer.num_unsealed())
            self._metrics.ledger_seal_lag.set(await self._sealer.lag_s())
        except (StratosError, RedisError) as error:
            _log.debug("how much waits to be sealed is not known: %s", error)
