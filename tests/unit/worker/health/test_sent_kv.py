"""Blocks that were sent are recalled from their receivers, but for what a sound probe has vouched for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.kv import KvIdentity
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.worker.health.sent_kv import SentKv

IDENTITY = KvIdentity(model_digest="m", kv_dtype="float32", rope_variant="", numerics_id="n")
A, B = (WorkerRef(worker_id=name, incarnation=name, address=name, role=WorkerRole.DECODE) for name in "ab")


def terms(adapter: str = "", salt: bytes = b"") -> Any:
    return SimpleNamespace(adapter=SimpleNamespace(digest=adapter), cache_salt=salt)


def hashes(token_ids: Sequence[int], adapter: str = "", salt: bytes = b"") -> list[bytes]:
    return block_hashes(chain_root(IDENTITY, adapter, salt), token_ids, 4)


class World:
    def __init__(self, max_tokens: int = 100) -> None:
        self.clock, self.told = FakeClock(), dict[str, list[bytes]]()
        self.sent = SentKv(self.clock, 4, self.forget, max_tokens)

    async def forget(self, receiver: WorkerRef, names: Sequence[bytes]) -> None:
        self.told.setdefault(receiver.worker_id, []).extend(names)

    async def recalled(self) -> dict[str, list[bytes]]:
        self.sent.recall()
        await self.sent.close()
        return self.told


async def test_each_receiver_is_told_of_its_blocks_once() -> None:
    world = World()
    world.sent.note(A, IDENTITY, terms(), tuple(range(10))[:9])
    world.sent.note(A, IDENTITY, terms("lora", b"salt"), tuple(range(10))[:4])
    world.sent.note(A, IDENTITY, terms(), tuple(range(10))[:8])
    world.sent.note(B, IDENTITY, terms(), tuple(range(20, 30))[:8])
    world.sent.note(B, IDENTITY, terms(), tuple(range(40, 50))[:0])
    wanted = {"a": [*hashes(range(8)), *hashes(range(4), "lora", b"salt")], "b": hashes(range(20, 28))}
    assert await world.recalled() == wanted


async def test_what_a_sound_probe_vouches_for_stays() -> None:
    world = World()
    world.sent.note(A, IDENTITY, terms(), tuple(range(4))[:4])
    world.clock.advance(1)
    began_s = world.clock.now()
    world.clock.advance(1)
    world.sent.note(A, IDENTITY, terms(), tuple(range(8, 12))[:4])  # while the probe was under way
    world.sent.sound_at(began_s)
    assert world.sent.num_tokens == 4
    assert await world.recalled() == {"a": hashes(range(8, 12))}


async def test_the_record_is_bounded_and_counts_what_falls_out(caplog: pytest.LogCaptureFixture) -> None:
    world = World(max_tokens=8)
    for first in (0, 100, 200):
        world.sent.note(A, IDENTITY, terms(), tuple(range(first, first + 4))[:4])
    world.sent.note(B, IDENTITY, terms(), tuple(range(300, 400))[:100])
    assert (world.sent.num_tokens, world.sent.num_dropped_tokens) == (8, 12)
    assert await world.recalled() == {"b": hashes(range(300, 308))}
    assert "12 tokens" in caplog.text
    none = World(max_tokens=0)
    none.sent.note(A, IDENTITY, terms(), tuple(range(4)))
    assert await none.recalled() == {}


async def test_a_leg_that_ends_after_the_conviction_is_recalled_too() -> None:
    world = World()
    assert await world.recalled() == {}
    world.sent.note(A, IDENTITY, terms(), tuple(range(4))[:4])
    await world.sent.close()
    assert world.told == {"a": hashes(range(4))}
