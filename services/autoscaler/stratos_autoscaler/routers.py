"""The fleet as all routers see it: reads every one, and adds up what they report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Set
from typing import Protocol

from stratos.common.errors import DependencyDown, StratosError
from stratos.core.fleet import Fleet
from stratos.planning.fleet_sum import FleetSum, sum_fleets

_log = logging.getLogger(__name__)


class RouterCalls(Protocol):
    """One router; ``stratos.rpc.clients.router.RouterClient`` is one."""

    async def fleet(self) -> Fleet:
        """Queues and workers as it sees them now."""
        ...

    async def close(self) -> None:
        """Release the connection."""
        ...


class RouterFleets:
    """Belongs to the event loop.

    Args:
        addresses: of the routers that there are now, host:port each.
        connect: makes the client of one.
    """

    def __init__(self, addresses: Callable[[], Awaitable[Set[str]]], connect: Callable[[str], RouterCalls]) -> None:
        self._addresses = addresses
        self._connect = connect
        self._clients: dict[str, RouterCalls] = {}
        self._problems: dict[str, str] = {}
        self._asking = asyncio.Lock()
        """One round at a time: one that finds an address gone closes its client, which cancels the calls of others."""

    async def fleet(self) -> FleetSum:
        """Queues and workers of all routers; those that do not answer are counted.

        Raises:
            DependencyDown: none answers.
        """
        async with self._asking:
            await self._follow(await self._addresses())
            answers = await asyncio.gather(*(self._ask(address) for address in self._clients))
        fleets = [answer for answer in answers if answer is not None]
        if not fleets:
            problem = next(iter(self._problems.values()), "no router's address is known")
            raise DependencyDown(problem)
        return FleetSum(fleet=sum_fleets(fleets), num_missing=len(answers) - len(fleets))

    async def num_requests(self, worker_ids: Collection[str], model_digest: str) -> int | None:
        """Requests at workers, and those that wait for a model; ``None`` while not all routers answer.

        Args:
            worker_ids: of the workers.
            model_digest: of the model; empty: nothing waits for it.

        Raises:
            DependencyDown: none answers.
        """
        found = await self.fleet()
        if found.num_missing:
            return None
        at_workers = [worker.status for worker in found.fleet.workers if worker.ref.worker_id in worker_ids]
        waiting = sum(queue.num_requests for queue in found.fleet.queues if queue.model_digest == model_digest)
        return waiting * bool(model_digest) + sum(status.num_seqs for status in at_workers if status is not None)

    async def close(self) -> None:
        """Close all connections."""
        await self._follow(frozenset())

    async def _follow(self, addresses: Set[str]) -> None:
        for address in addresses - self._clients.keys():
            self._clients[address] = self._connect(address)
        for address in self._clients.keys() - addresses:
            self._problems.pop(address, None)
            await self._clients.pop(address).close()

    async def _ask(self, address: str) -> Fleet | None:
        try:
            fleet = await self._clients[address].fleet()
        except StratosError as error:
            if self._problems.get(address) != error.message:
                _log.warning("router %s: %s", address, error.message)
            self._problems[address] = error.message
            return None
        self._problems.pop(address, None)
        return fleet
