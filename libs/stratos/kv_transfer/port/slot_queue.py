"""Waiting for a staging slot, for a bounded time and in order of arrival per source.

A leg that holds slots is already granted and gives them back within a transfer's time, so this wait cannot deadlock;
past its bound the hand-off is refused and the request goes back to the router.
"""

from __future__ import annotations

import asyncio
from collections import deque

from stratos.common.errors import Busy
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.transfer import TransportOffer


class SlotQueue:
    """Legs of one worker that wait for staging slots, by source. Belongs to the event loop."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waiters: dict[str, deque[asyncio.Event]] = {}

    def freed(self) -> None:
        """Slots were given back, or their pair is gone: the first waiter of each source looks again."""
        for waiters in self._waiters.values():
            waiters[0].set()

    async def allocate(
        self, staging: StagingSlots, source_incarnation: str, want: int, leg: str
    ) -> tuple[TransportOffer, list[int]]:
        """Slots for ``leg``, and how the source reaches them.

        Raises:
            Busy: none became free in time.
            Overloaded: no memory for another source's slots.
        """
        turn = asyncio.Event()
        waiters = self._waiters.setdefault(source_incarnation, deque())
        waiters.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    if waiters[0] is turn:
                        offer = await staging.open_pair(source_incarnation)
                        if slots := staging.allocate_slots(offer.pair, want, leg=leg):
                            return offer, slots
                    turn.clear()
                    await turn.wait()
        except TimeoutError:
            raise Busy("no staging slot is free on this worker") from None
        finally:
            waiters.remove(turn)
            if not waiters:
                del self._waiters[source_incarnation]
            self.freed()
