"""An endpoint that ignores its limits is cut within bounds, and the times of its answer are measured."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import ConcurrencyLimited, WorkerLost
from stratos.core.ledger.entry import RequestOutcome
from stratos.core.ledger.pricing import Times, TokenCounts
from stratos.core.ledger.usage import MeterTag
from stratos.core.tenancy.prices import Price
from stratos.core.tenant import Tenant
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.overflow.bill import ExternalBill
from stratos_gateway.overflow.call import ExternalCall
from stratos_gateway.overflow.output import ExternalOutput
from tests.support.fakes.shut_gate import ShutGate

BILL = ExternalBill(tenant=Tenant(name="t"), tag=MeterTag(model="m"), price=Price(prompt=1_000_000, output=1_000_000))
CALL = ExternalCall(
    model="m", max_tokens=10, num_prompt_tokens=5, count_tokens=len, within_s=1.0, received_s=100.0, bill=BILL
)

USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}


def piece(text: str, index: int = 0, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]}


class Endless:
    """An endpoint that says the same for ever, and how much of it was taken."""

    def __init__(self, pieces: Iterable[dict[str, Any]], clock: FakeClock | None = None, gap_s: float = 0.0) -> None:
        self.num_taken = 0
        self._pieces = itertools.cycle(pieces)
        self._clock, self._gap_s = clock, gap_s

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        for one in self._pieces:
            self.num_taken += 1
            if self._clock is not None:
                self._clock.advance(self._gap_s)
            yield one


def output(endpoint: Endless, num_choices: int = 1, call: ExternalCall = CALL) -> ExternalOutput:
    return ExternalOutput(endpoint.events(), num_choices, call, FakeClock(100.0))


@pytest.mark.parametrize("text", ["a", "\u00e9\u4e2d", "x" * 5000])
async def test_an_endpoint_that_goes_on_for_ever_ends_as_length(text: str) -> None:
    endpoint = Endless([piece(text)])
    found = output(endpoint)
    (chunk,) = await found.finish()
    assert chunk.finish_reason == "length"
    assert 10 <= len(chunk.text.encode()) <= CALL.max_bytes
    assert endpoint.num_taken <= CALL.max_pieces + 1
    assert chunk.text == (text * 1000)[: len(chunk.text)], "cut between two characters"
    assert found.usage.num_output_tokens == 10, "no more than was asked for"


async def test_what_was_cut_is_billed_as_asked_for_and_paid_as_made() -> None:
    found = output(Endless([piece("abcd")]))
    (chunk,) = await found.finish()
    (draft,) = found.drafts(None)
    assert (draft.outcome, draft.counts) == (RequestOutcome.EXTERNAL, TokenCounts(num_prompt=5, num_output=10))
    assert draft.external_cost == 5 + len(chunk.text), "as our tokenizer counts what came"
    so_far = found.draft_so_far()
    assert so_far is not None
    assert so_far.counts.num_output == 10


async def test_a_choice_that_is_cut_leaves_the_others_their_ends() -> None:
    long = [piece("aa")] * (CALL.max_pieces + 5)
    endpoint = Endless([*long, piece("b", 1), piece("", 1, "stop"), piece("never")])
    chunks = {chunk.index: chunk for chunk in await output(endpoint, 2).finish()}
    assert (chunks[0].finish_reason, chunks[1].finish_reason) == ("length", "stop")
    assert chunks[1].text == "b"
    assert endpoint.num_taken == len(long) + 2, "an endpoint that was cut is not waited for"


async def test_what_the_endpoint_says_of_an_answer_within_bounds_counts() -> None:
    told = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 30}}
    found = output(Endless([piece("a", reason="stop"), told]))
    await found.finish()
    assert (found.usage.num_prompt_tokens, found.usage.num_output_tokens) == (7, 30)


async def test_only_what_the_endpoint_says_of_the_whole_answer_counts() -> None:
    def told(num_output: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 7, "completion_tokens": num_output}}

    found = output(Endless([{"choices": [], **told(0)}, piece("a") | told(1), piece("b", reason="stop"), told(8)]))
    await found.news()
    assert found.usage == Usage(CALL.num_prompt_tokens, 1), "as our tokenizer counts what came"
    await found.finish()
    assert found.usage == Usage(7, 8)


@pytest.mark.parametrize("reason", ["error", "abort", "unheard_of", {"type": "stop"}])
async def test_an_end_that_is_no_end_of_a_whole_choice_is_a_failure(reason: Any) -> None:
    found = output(Endless([piece("half an "), piece("", reason=reason), USAGE]))
    with pytest.raises(WorkerLost):
        await found.finish()
    assert not found.is_complete, "nor is it counted as served"


@pytest.mark.parametrize(("reason", "shown"), [("eos_token", "stop"), ("max_tokens", "length"), ("length", "length")])
async def test_ends_of_a_whole_choice_are_told_in_our_words(reason: str, shown: str) -> None:
    (chunk,) = await output(Endless([piece("whole", reason=reason), USAGE])).finish()
    assert (chunk.text, chunk.finish_reason) == ("whole", shown)


async def test_times_are_measured_from_the_last_byte_and_between_pieces() -> None:
    clock = FakeClock(100.0)
    endpoint = Endless([piece("a"), piece("b"), piece("c", reason="stop")], clock, 0.25)
    found = ExternalOutput(endpoint.events(), 1, replace(CALL, promised_itl_us=200_000), clock)
    assert found.times(100.0) == [Times()]
    await found.news()
    assert found.times(100.0) == [Times(ttft_us=250_000)]
    await found.news()
    await found.news()
    (times,) = found.times(100.0)
    assert times == Times(ttft_us=250_000, itl_us=250_000)
    assert (times.itls.num, times.itls.num_over) == (2, 2)
    (draft,) = found.drafts(None)
    assert (draft.times, draft.times.itls) == (times, times.itls), "which the ledger and promises go by"


async def taken_behind(gate: ShutGate, found: ExternalOutput) -> asyncio.Task[list[ChoiceChunk]]:
    """What is taken while the gate is shut, and after it was opened."""
    taking = asyncio.create_task(found.news())
    await gate.asked.wait()
    assert not taking.done(), "a gateway that stood still sends nothing before it knows whose its slots are"
    gate.open()
    await asyncio.wait({taking})
    return taking


async def test_what_the_endpoint_says_waits_until_it_is_known_that_the_request_still_has_its_place() -> None:
    gate = ShutGate()
    found = output(Endless([piece("a")]), call=replace(CALL, gate=gate))
    assert [chunk.text for chunk in (await taken_behind(gate, found)).result()] == ["a"]


async def test_a_request_that_has_lost_its_place_meanwhile_sends_nothing_of_it() -> None:
    gate = ShutGate(lambda: found.fail(ConcurrencyLimited("others have its slot")))
    found = output(Endless([piece("a")]), call=replace(CALL, gate=gate))
    with pytest.raises(ConcurrencyLimited):
        (await taken_behind(gate, found)).result()
