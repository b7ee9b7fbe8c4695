"""Calls in which a gateway's streams are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.sealed.stream_store import StreamBounds, StreamFrame, StreamWrite, WriteOutcome
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.owned import GIVEN_UP, OwnedStream, Ownership

NUM_STREAMS = 600


class Store:
    """Notes what it is given; the calls that are named fail."""

    bounds = StreamBounds(lease_s=2.0, kept_s=60.0, tenant_bytes=1 << 20, tenant_streams=1 << 20)

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        """Tenants of the writes and of the frames of each."""
        self.fails_at = -1

    async def write(
        self, writes: Sequence[StreamWrite], frames: Sequence[StreamFrame] = ()
    ) -> tuple[list[WriteOutcome], list[str]]:
        self.calls.append(([write.tenant_id for write in writes], [frame.tenant_id for frame in frames]))
        if len(self.calls) == self.fails_at:
            raise DependencyDown("Redis does not answer")
        return [WriteOutcome.OK] * len(writes), []


class Tenant(str):
    """Name that counts how often it is compared."""

    __slots__ = ()
    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Tenant.num_compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Desk:
    """A desk, and a stream of each of many tenants."""

    def __init__(self) -> None:
        self.store: Any = Store()
        self._clock = FakeClock()
        self._desk = StreamDesk(self.store, self._clock, 0.05, GatewayMetrics(CollectorRegistry()))
        self.tenants = [Tenant(f"t{number}") for number in range(NUM_STREAMS)]
        self.streams = [self.own(tenant) for tenant in self.tenants]

    def own(self, tenant: str) -> OwnedStream:
        stream = OwnedStream(tenant, f"s-{tenant}", Ownership(number=1), 1, lambda error: None)
        stream.num_cached, stream.ended_unix_s = lambda: [0], lambda: 1.0
        self._desk.own(stream)
        return stream

    async def turn(self) -> list[tuple[list[str], list[str]]]:
        """Calls of one turn, before which each stream gets a token."""
        self.store.calls.clear()
        for stream in self.streams:
            stream.note(ChoiceChunk(0, "", [7], [], None, is_first=False))
        self._clock.advance(0.05)
        await self._desk.turn()
        calls: list[tuple[list[str], list[str]]] = list(self.store.calls)
        return calls


async def test_no_call_holds_redis_up_for_all_tenants() -> None:
    desk = Desk()
    for is_framed in (False, True):
        calls = await desk.turn()
        assert [tenant for call in calls for tenant in call[is_framed]] == desk.tenants
        assert max(len(call[is_framed]) for call in calls) <= 250


async def test_only_what_a_failed_call_may_have_lost_is_written_again() -> None:
    desk = Desk()
    await desk.turn()
    desk.store.fails_at = 2
    with pytest.raises(DependencyDown):
        await desk.turn()
    desk.store.fails_at = -1
    again = [tenant for writes, _ in await desk.turn() for tenant in writes]
    assert again == desk.tenants[250:]


async def test_streams_that_end_together_are_settled_without_looking_at_each_other() -> None:
    desk = Desk()
    for stream in desk.streams:
        stream.end(GIVEN_UP)
    Tenant.num_compared = 0
    desk.streams, ended = [], desk.streams
    await desk.turn()
    assert Tenant.num_compared <= 4 * len(ended)
    desk.streams = [desk.own(desk.tenants[0])]
    await desk.turn()
    assert await desk.turn() == [([], [desk.tenants[0]])]
