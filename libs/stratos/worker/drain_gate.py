"""The door of a worker: whether it takes new work, and what is open at it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class DrainGate:
    """Shared by everything that accepts work. Belongs to the event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_source_legs = 0
        """Hand-offs this worker sends."""
        self.num_receiver_legs = 0
        """Hand-offs this worker receives, those included that are being given up."""
        self.num_embed_calls = 0
        self._to_be_fetched: set[str] = set()
        """Requests that were handed back, and whose KV no successor has asked for yet."""
        self._one_left = asyncio.Event()

    @property
    def num_handoffs(self) -> int:
        """Hand-offs open here in either direction."""
        return self.num_source_legs + self.num_receiver_legs

    def note_handed_back(self, request_ids: Iterable[str]) -> None:
        """Their KV is here, and their successors may come for it."""
        self._to_be_fetched.update(request_ids)

    def note_fetched(self, request_id: str) -> None:
        """A successor came, whatever it got."""
        self._to_be_fetched.discard(request_id)
        self._one_left.set()

    async def wait_fetched(self) -> None:
        """Wait until the KV of all that was handed back has been asked for."""
        while self._to_be_fetched:
            self._one_left.clear()
            await self._one_left.wait()

    @contextmanager
    def source_leg(self) -> Iterator[None]:
        """Count one hand-off that this worker sends."""
        self.num_source_legs += 1
        try:
            yield
        finally:
            self.num_source_legs -= 1
            self._one_left.set()

    @contextmanager
    def embed_call(self) -> Iterator[None]:
        self.num_embed_calls += 1
        try:
            yield
        finally:
            self.num_embed_calls -= 1
            self._one_left.set()

    async def wait_sources_done(self) -> None:
        """Wait until this worker sends nothing, and embeds nothing, any more."""
        while self.num_source_legs or self.num_embed_calls:
            self._one_left.clear()
            await self._one_left.wait()
