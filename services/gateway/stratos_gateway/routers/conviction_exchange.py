"""Exchange of convictions with one router: those that it lacks, and those of its own that this gateway has seen.

Every gateway tells every router what it knows, and routers hand it on, so that each conviction is everywhere within
two intervals, and outlives the gateway that made it.  A router process that is new is sent everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stratos.common.clock import Clock
from stratos.core.requests.convictions import ConvictionTable, ConvictionUpdate

Ask = Callable[[ConvictionUpdate], Awaitable[ConvictionUpdate]]
"""One call to the router. Raises ``StratosError``."""


class ConvictionExchange:
    """Exchange with one router. Belongs to the event loop.

    Args:
        table: of this gateway.
        ask: calls the router.
        clock: of the table.
    """

    def __init__(self, table: ConvictionTable, ask: Ask, clock: Clock) -> None:
        self._table = table
        self._ask = ask
        self._clock = clock
        self._lock = asyncio.Lock()
        self._incarnation, self._cursor, self._num_told = "", 0, 0

    async def run(self) -> None:
        """Tell the router what it may not know, and take over what it knows.

        Raises:
            StratosError: the router did not answer.
        """
        async with self._lock:
            while not await self._run_once():
                pass

    async def _run_once(self) -> bool:
        """``False`` when the router turned out to be another process, which knows nothing of what was told."""
        num_told, now_s = self._table.version, self._clock.now()
        update = ConvictionUpdate(
            incarnation=self._incarnation,
            cursor=self._cursor,
            convictions=self._table.since(self._num_told, now_s),
        )
        answer = await self._ask(update)
        self._table.add_all(answer.convictions, self._clock.now())
        is_same = answer.incarnation == self._incarnation
        self._incarnation, self._cursor = answer.incarnation, answer.cursor
        self._num_told = num_told if is_same else 0
        return is_same
