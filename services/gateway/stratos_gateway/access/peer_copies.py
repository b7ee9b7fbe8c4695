"""A gateway that starts without a store and without a copy of its own takes one from another gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from stratos.common.errors import StratosError
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.snapshot_copy import SnapshotCopy, parse_copy

_log = logging.getLogger(__name__)
_RETRY_S = 1.0
Fetch = Callable[[str], Awaitable[bytes]]
"""host:port -> text of the copy. Raises ``StratosError``."""


class PeerCopies:
    """Asks the other gateways as long as nothing is known.

    Args:
        follower: whose snapshot is to be filled.
        addresses: of all gateways; this one may be among them.
        fetch: asks one of them.
    """

    def __init__(self, follower: SnapshotFollower, addresses: PeerAddresses, fetch: Fetch) -> None:
        self._follower = follower
        self._addresses = addresses
        self._fetch = fetch

    async def run(self) -> None:
        """Root task; does nothing once the snapshot is complete."""
        await self._follower.first_look()
        while not self._follower.snapshot.is_complete:
            await self.ask_all()
            await asyncio.sleep(_RETRY_S)
        await asyncio.Event().wait()

    async def ask_all(self) -> None:
        """One round; of several copies the one of the latest change is taken, by the store's own count."""
        found = [copy for address in await self._addresses.now() if (copy := await self._ask(address)) is not None]
        # A load may have begun since; what it reads is newer than any copy.
        if found and self._follower.snapshot.state is SnapshotState.EMPTY:
            newest = max(found, key=lambda copy: (copy.revision, -(copy.age_s or 0.0)))
            # It has just been made, and the clock of another machine may be wrong: its age is what that machine says.
            self._follower.restore(newest, newest.made_unix_s or time.time())
            _log.info("%d tenants, keys and adapters were taken from another gateway", len(newest.records))

    async def _ask(self, address: str) -> SnapshotCopy | None:
        try:
            return await asyncio.to_thread(parse_copy, await self._fetch(address))
        except StratosError as error:
            _log.debug("the gateway at %s gives no copy: %s", address, error)
            return None
