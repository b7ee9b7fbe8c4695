"""Calls in which a gateway's streams are recorded."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos.store.sealed.stream_frames import StreamFrame
from stratos.store.sealed.stream_store import StreamBounds, StreamWrite, WriteOutcome
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.streams.codec import decode_block
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.owned import GIVEN_UP, OwnedStream, Ownership
from tests.support.waiting import LIMIT_S

NUM_STREAMS = 600


class Store:
    """Notes what it is given, keeps what would be in Redis; the calls that are named fail."""

    bounds = StreamBounds(lease_s=2.0, kept_s=60.0, tenant_bytes=1 << 20, tenant_streams=1 << 20)

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        """Tenants of the writes and of the frames of each."""
        self.leases: list[str] = []
        """Names of those that were renewed by these calls."""
        self.frames: dict[int, bytes] = {}
        """By turn, those of the last tenant."""
        self.blocks: dict[tuple[str, int], bytes] = {}
        """By stream and number."""
        self.lost: list[str] = []
        self.fails_at = -1

    async def write(
        self,
        writes: Sequence[StreamWrite],
        frames: Sequence[StreamFrame] = (),
        renewals: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[WriteOutcome], list[str]]:
        self.calls.append(([write.tenant_id for write in writes], [frame.tenant_id for frame in frames]))
        if len(self.calls) == self.fails_at:
            raise DependencyDown("Redis does not answer")
        for names in renewals.values():
            words = names.split(" ")
            self.leases += map(" ".join, zip(words[::2], words[1::2], strict=True))
        for write in writes:
            if write.block >= 0:
                self.blocks[write.stream_id, write.block] = write.content
        for frame in frames:
            if frame.entries:
                self.frames[frame.turn] = frame.entries
            for turn in frame.dropped:
                self.frames.pop(turn, None)  # it may never have come
        lost, self.lost = self.lost, []
        return [WriteOutcome.OK] * len(writes), lost

    def tokens(self, stream: str, number: int) -> list[int]:
        """All that is recorded of a stream."""
        blocks = [content for (name, _), content in sorted(self.blocks.items()) if name == stream]
        found = [token for block in blocks for piece in decode_block(block, 1, 1).pieces for token in piece.ids]
        tail: dict[int, int] = {}
        for entries in self.frames.values():
            words = array("I", entries)
            tail |= {words[at + 1]: words[at + 2] for at in range(0, len(words), 3) if words[at] == number}
        while len(found) in tail:
            found.append(tail[len(found)])
        return found


class Tenant(str):
    """Name that counts how often it is compared."""

    __slots__ = ()
    num_compared = 0

    def __eq__(self, other: object) -> bool:
        Tenant.num_compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Desk:
    """A desk, and a stream of each of many tenants, or many of one."""

    def __init__(self, num_of_one: int = 0) -> None:
        self.store: Any = Store()
        self._clock = FakeClock()
        self._desk = StreamDesk(self.store, self._clock, 0.05, GatewayMetrics(CollectorRegistry()))
        self.tenants = [Tenant(f"t{number}") for number in range(0 if num_of_one else NUM_STREAMS)]
        self.streams = [self.own(tenant) for tenant in self.tenants]
        self.streams += [self.own("one", number) for number in range(1, num_of_one + 1)]

    def own(self, tenant: str, number: int = 1) -> OwnedStream:
        stream = OwnedStream(tenant, f"s-{tenant}-{number}", Ownership(number=number), 1, lambda error: None)
        stream.num_cached, stream.ended_unix_s = lambda: [0], lambda: 1.0
        self._desk.own(stream)
        return stream

    async def turn(self) -> list[tuple[list[str], list[str]]]:
        """Calls of one turn, before which each stream gets a token."""
        self.store.calls.clear()
        self.store.leases.clear()
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


async def test_leases_of_streams_are_renewed_by_their_names_three_times_as_often_as_they_end() -> None:
    desk = Desk(num_of_one=3)
    found: list[list[str]] = []
    for turn in range(60):
        await desk.turn()
        found.append(list(desk.store.leases))
        if turn:
            assert not any(writes for writes, _ in desk.store.calls[1:])
    gaps = [turn for turn, leases in enumerate(found) if leases]
    assert {gap - before for before, gap in pairwise(gaps)} <= {13, 14}, "0.7 s of two"
    assert all(sorted(found[turn]) == [f"s-one-{number} 1" for number in (1, 2, 3)] for turn in gaps)


async def test_a_stream_whose_lease_is_lost_is_written_so_that_it_learns_why() -> None:
    desk = Desk(num_of_one=3)
    await desk.turn()
    desk.store.lost = ["s-one-2"]
    await desk.turn()
    [(writes, _)] = await desk.turn()
    assert writes == ["one"]


async def test_blocks_of_streams_that_began_together_are_not_written_together_and_frames_last_until_then() -> None:
    desk, num_turns = Desk(num_of_one=64), 400
    sizes = []
    for turn in range(num_turns):
        calls = await desk.turn()
        sizes.append(sum(len(writes) for writes, _ in calls))
        if turn % 5 == 0:
            number = 1 + turn % 64
            assert len(desk.store.tokens(f"s-one-{number}", number)) == turn + 1
    assert sizes[0] == 64
    assert max(sizes[2:]) <= 4
    assert sum(sizes[2:]) <= 64 * num_turns / 60
    assert len(desk.store.frames) <= 128 + 32 + 1


async def test_frames_that_nothing_needs_are_dropped_after_a_call_that_failed_and_once_no_stream_is_left() -> None:
    desk = Desk(num_of_one=2)
    for turn in range(300):
        desk.store.fails_at = 1 if turn % 50 == 40 else -1
        if desk.store.fails_at == 1:
            with pytest.raises(DependencyDown):
                await desk.turn()
        else:
            await desk.turn()
            assert len(desk.store.tokens("s-one-1", 1)) == turn + 1
    assert 32 <= len(desk.store.frames) <= 128 + 32 + 1
    desk.streams, ended = [], desk.streams
    for stream in ended:
        stream.note_whole()
    await desk.turn()
    assert desk.store.frames
    await desk.turn()
    assert not desk.store.frames
    assert len(desk.store.tokens("s-one-1", 1)) == 300


class Halted(list[int]):
    """Token ids behind whose first one nothing comes until it is let."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[int]:
        first, *rest = super().__iter__()
        yield first
        self.begun.set()
        assert self.goes_on.wait(LIMIT_S)
        yield from rest


async def test_what_another_thread_notes_is_written_once_that_has_ended() -> None:
    """What was due before waits as well; a piece is never cut."""
    desk, ids = Desk(num_of_one=1), Halted(range(2000))
    [stream] = desk.streams
    await desk.turn()
    stream.note(ChoiceChunk(0, "", [7, 7], [], None, is_first=False))
    release = stream.hold()
    noting = asyncio.create_task(asyncio.to_thread(stream.note, ChoiceChunk(0, "", ids, [], None, is_first=False)))
    assert await asyncio.to_thread(ids.begun.wait, LIMIT_S)
    desk.streams, before = [], list(desk.store.blocks.values())
    await desk.turn()
    assert list(desk.store.blocks.values()) == before
    ids.goes_on.set()
    await noting
    release()
    await desk.turn()
    assert desk.store.tokens(stream.stream_id, 1) == [7, 7, 7, *range(2000)]
