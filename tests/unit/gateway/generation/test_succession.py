"""Waits that end because a newer revision is to answer."""

from __future__ import annotations

import asyncio

import pytest

from stratos_gateway.answering.chain import Superseded
from stratos_gateway.generation.succession import Succession


@pytest.mark.parametrize("may_move", [True, False])
async def test_a_wait_ends_once_its_revision_is_superseded_and_it_may_move(may_move: bool) -> None:
    gone, placed = set[str](), asyncio.Event()
    succession = Succession(gone.__contains__)

    async def wait(digest: str) -> str:
        with succession.wait(digest, lambda: may_move):
            await placed.wait()
        return "placed"

    waits = [asyncio.create_task(wait(digest)) for digest in ("one", "two")]
    await asyncio.sleep(0)
    gone.add("one")
    succession.look()
    late = asyncio.create_task(wait("one"))
    await asyncio.sleep(0)
    placed.set()
    first, second, third = await asyncio.gather(*waits, late, return_exceptions=True)
    assert second == "placed"
    assert [getattr(end, "digest", end) for end in (first, third)] == ["one" if may_move else "placed"] * 2


async def test_what_no_newer_revision_may_answer_waits_on() -> None:
    succession, may_move = Succession(lambda digest: True), iter([False, False, True])
    with succession.wait("one", lambda: next(may_move)):
        succession.look()
        await asyncio.sleep(0)
    with pytest.raises(Superseded), succession.wait("one", lambda: True):
        raise AssertionError("never begun")
