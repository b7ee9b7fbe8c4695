"""Kept answers of all gateways: an outage of Redis costs a request next to nothing, and a flood no memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from stratos.common.errors import DependencyDown
from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos_gateway.openai.chunks import ChoiceChunk, TokenEntry
from stratos_gateway.response_cache.cache import KeptAnswer
from stratos_gateway.response_cache.codec import encode_answer
from stratos_gateway.response_cache.shared import SharedAnswers
from tests.support.waiting import eventually

ANSWER = KeptAnswer(chunks=(ChoiceChunk(0, "text", [7], [], "stop", True),), prompts=())


@dataclass
class Answers:
    """A store that works, hangs or is away."""

    state: str = "works"
    kept: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    num_refused: int = 0

    async def put(self, tenant_id: str, request: bytes, answer: bytes, ttl_s: float) -> bool:
        await self._be()
        self.kept[tenant_id, request] = answer
        return True

    async def find(self, tenant_id: str, request: bytes) -> tuple[bytes, float] | None:
        await self._be()
        found = self.kept.get((tenant_id, request))
        return None if found is None else (found, 5.0)

    async def _be(self) -> None:
        if self.state == "hangs":
            await asyncio.Event().wait()
        if self.state == "away":
            self.num_refused += 1
            raise DependencyDown("away")


async def test_what_one_keeps_another_finds_once_the_store_is_back() -> None:
    store = Answers("away")
    one, two = SharedAnswers(store), SharedAnswers(store)
    task = asyncio.create_task(one.run())
    one.keep(b"lost", "tn_1", ANSWER, 60)
    await eventually(lambda: store.num_refused == 1, "it is tried, and given up")
    store.state = "works"
    one.keep(b"request", "tn_1", ANSWER, 60)
    await eventually(lambda: ("tn_1", b"request") in store.kept, "it is written")
    assert await two.find(b"request", "tn_1") == (ANSWER, 5.0)
    assert await two.find(b"lost", "tn_1") is None
    assert await two.find(b"request", "tn_2") is None
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("state", ["hangs", "away"])
async def test_a_request_does_not_wait_for_a_store_that_is_away(state: str) -> None:
    assert await SharedAnswers(Answers(state)).find(b"request", "tn_1") is None


async def test_an_answer_that_takes_long_to_read_stays_at_its_gateway() -> None:
    """One of 4,000 tokens with their log probabilities is shared by none; one of as many tokens alone is."""
    store = Answers()
    shared = SharedAnswers(store)
    entry = TokenEntry(PositionLogprobs(TokenLogprob(1, -0.5, 1), (TokenLogprob(1, -0.5, 1),) * 20), 0)
    long, large = (
        KeptAnswer(chunks=(ChoiceChunk(0, "text" * 4000, [7] * 4000, entries, "stop", True),), prompts=())
        for entries in ([], [entry] * 4000)
    )
    for name, answer in ((b"large", large), (b"long", long)):
        shared.keep(name, "tn_1", answer, 60)
    assert shared.num_waiting == 1
    store.kept["tn_1", b"large"] = encode_answer(large)  # by a gateway of an older version
    store.kept["tn_1", b"long"] = encode_answer(long)
    assert await shared.find(b"large", "tn_1") is None
    assert await shared.find(b"long", "tn_1") == (long, 5.0)


async def test_answers_that_cannot_be_written_are_bounded() -> None:
    shared = SharedAnswers(Answers("hangs"))
    for number in range(1000):
        shared.keep(str(number).encode(), "tn_1", ANSWER, 60)
    assert shared.num_waiting == 256
