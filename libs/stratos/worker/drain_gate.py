"""The door of a worker: whether it takes new work, and what is open at it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stratos.common.errors import Draining


@dataclass(slots=True)
class DrainReport:
    """Fate of the streams of a worker that drained."""

    num_handed_back: int = 0
    num_offered: int = 0
    """Streams of these whose KV was there."""
    num_fetched: int = 0
    """Streams whose KV a successor has fetched."""
    num_fetched_tokens: int = 0


class DrainGate:
    """Shared by everything that accepts work. Belongs to the event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        """The process is leaving."""
        self.is_convicted = False
        """What this worker computes is not to be trusted: it takes nothing, and hands out neither KV nor vectors."""
        self.is_asleep = False
        """Its model is not in memory, or is about to leave it: nothing is taken and no KV handed out until it wakes."""
        self.num_source_legs = 0
        """Hand-offs this worker sends."""
        self.num_receiver_legs = 0
        """Hand-offs this worker receives, those included that are being given up."""
        self.num_embed_calls = 0
        self.report = DrainReport()
        self.is_drained = asyncio.Event()
        """The drain is over, and ``report`` complete; not set where the engine has failed."""
        self._to_be_fetched: set[str] = set()
        """Requests that were handed back, and whose KV no successor has asked for yet."""
        self._one_left = asyncio.Event()

    @property
    def is_shut(self) -> bool:
        """Nothing new is taken."""
        return self.is_draining or self.is_convicted or self.is_asleep

    def check_trusted(self) -> None:
        """Raise ``Draining`` where what this worker computes is not to be trusted."""
        if self.is_convicted:
            raise Draining("this worker computes wrong; resume the request elsewhere")

    @property
    def num_handoffs(self) -> int:
        """Hand-offs open here in either direction."""
        return self.num_source_legs + self.num_receiver_legs

    def note_handed_back(self, num_streams: int, with_kv: Sequence[str]) -> None:
        """Streams went back to their gateways; of those ``with_kv`` the KV is here, and their successors may come."""
        self._to_be_fetched.update(with_kv)
        self.report.num_handed_back += num_streams
        self.report.num_offered += len(with_kv)

    def note_fetched(self, request_id: str, num_tokens: int) -> None:
        """A successor came, and got the KV of so many tokens."""
        if request_id in self._to_be_fetched and num_tokens:
            self.report.num_fetched += 1
            self.report.num_fetched_tokens += num_tokens
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
