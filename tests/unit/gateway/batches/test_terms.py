"""A line of a batch whose answer has the same bytes, however often it is computed."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from stratos.common.clock import FakeClock
from stratos_gateway.answering.request import LINE, BatchLine
from stratos_gateway.batches.terms import LineStep
from stratos_gateway.moderation.route import ModerationSource, PreparedModeration


class Admission:
    async def run_in(self, place: Any, work: Awaitable[None]) -> None:
        await work


async def verdict(text: str) -> dict[str, bool]:
    return {"foul": "bad" in text}


async def judged(line: int, salt: bytes = b"acme") -> dict[str, Any]:
    own = BatchLine(name=f"batch_1-{line}", epoch=line + 1, created_unix_s=5)
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
