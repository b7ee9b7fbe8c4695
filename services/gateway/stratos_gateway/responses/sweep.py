"""Root task that deletes objects of responses that are gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import StratosError

_log = logging.getLogger(__name__)


class DueObjects(Protocol):
    """Where they are; ``store.sealed.ResponseStore`` is the one of a gateway."""

    async def delete_due_objects(self) -> int:
        """Delete some; how many there were. Raises ``DependencyDown``."""
        ...


class ObjectSweep:
    """Several gateways may sweep at a time: an object that is gone is no error.

    Args:
        store: of all gateways.
        interval_s: between two looks.
    """

    def __init__(self, store: DueObjects, interval_s: float) -> None:
        self._store = store
        self._interval_s = interval_s

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.turn()

    async def turn(self) -> None:
        """Delete all that are due; what cannot be deleted now is later."""
        try:
            while await self._store.delete_due_objects():
                pass
        except (StratosError, RedisError) as error:
            _log.debug("objects of responses are deleted later: %s", error)
