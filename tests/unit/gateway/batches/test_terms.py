"""A line of a batch whose answer has the same bytes, and one bill, however often it is computed."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos.core.ledger.usage import MeterTag
from stratos_gateway.answering.request import LINE, BatchLine
from stratos_gateway.batches.terms import LineStep
from stratos_gateway.embedding.preparation import PreparedEmbedding
from stratos_gateway.moderation.route import ModerationSource, PreparedModeration


class Admission:
    async def run_in(self, place: Any, work: Awaitable[None]) -> None:
        await work


async def verdict(text: str) -> dict[str, bool]:
    return {"foul": "bad" in text}


async def judged(line: int, salt: bytes = b"acme") -> dict[str, Any]:
    own = BatchLine(name=f"batch_1-{line}", epoch=line + 1, created_unix_s=5, arrived_unix_ms=7)
    prepared = PreparedModeration(
        model="content-policy/rules", operation="moderation", num_tokens=0, num_sequences=0, texts=(),
        refusal=lambda: None, inputs=("bad", "good"),
    )  # fmt: skip
    request = SimpleNamespace(
        http=Request({"type": "http", LINE: own}), tenant=SimpleNamespace(cache_salt=salt), prepared=prepared,
        screen=SimpleNamespace(verdict=verdict), place=None, deadline_s=1e6, end_s=1e6, fixed_id="",
    )  # fmt: skip
    around = LineStep().around(cast("Any", request))
    assert around is not None
    source = ModerationSource(cast("Any", Admission()), FakeClock())
    async with around, source.open(cast("Any", request)) as output:
        return dict(output.answer)


async def test_verdicts_of_a_line_have_one_id() -> None:
    first = await judged(1)
    assert str(first["id"]).startswith("modr")
    assert await judged(1) == first
    assert len({(await judged(1))["id"], (await judged(2))["id"], (await judged(1, b"other"))["id"]}) == 3


async def test_vectors_of_a_line_are_billed_at_the_time_at_which_its_slice_was_taken_first() -> None:
    """Another gateway that computes it after midnight writes the same entry, and not a second one."""
    nothing: Any = None
    prepared = PreparedEmbedding(
        model="base", operation="embeddings", num_tokens=3, num_sequences=1, texts=(), refusal=lambda: None,
        body=nothing, call=nothing, meter=MeterTag(arrived_unix_ms=99, key_id="k"),
    )  # fmt: skip
    own = BatchLine(name="batch_1-0", epoch=2, created_unix_s=5, arrived_unix_ms=7)
    request: Any = SimpleNamespace(
        http=Request({"type": "http", LINE: own}), tenant=SimpleNamespace(cache_salt=b"acme"), prepared=prepared
    )
    around = LineStep().around(request)
    assert around is not None
    async with around:
        assert request.prepared.meter == MeterTag(arrived_unix_ms=7, key_id="k")
