"""The log of a request: coalescing, replay, end."""

from __future__ import annotations

import pytest

from stratos.common.errors import Busy
from stratos.core.generation import DraftUse, PrefillPath, Submission
from stratos.core.ledger.usage import MeterTag
from stratos.core.requests.pins import TTL_5M_S, CacheWrites, PinnedSpan
from stratos.core.requests.records import ChoiceOutput, ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import RequestStats
from stratos.worker.records import PromptOrigin, RequestRecord
from tests.support.worlds.terms import make_terms

KEY = RequestKey("r", 0)


def make_record(
    *choices: ChoiceState, prompt_ids: tuple[int, ...] = (1, 2), meter: MeterTag | None = None
) -> RequestRecord:
    request = EngineRequest(
        key=KEY,
        prompt_ids=prompt_ids,
        choices=choices or (ChoiceState(index=0),),
        sampling=SamplingParams(),
        seed=0,
        terms=make_terms(arrival_s=10.0),
    )
    return RequestRecord(Submission(request=request, model_digest="fake", meter=meter), "cpu")


def output(index: int, offset: int, *tokens: int, finish: FinishReason | None = None) -> ChoiceOutput:
    return ChoiceOutput(KEY, index, offset, list(tokens), finish_reason=finish)


def test_unsent_steps_coalesce_and_nothing_is_sent_twice() -> None:
    record = make_record()
    record.append(output(0, 0, 5))
    record.append(output(0, 1, 6))
    delta = record.drain()
    assert delta is not None
    assert [(c.offset, c.token_ids) for c in delta.choices] == [(0, [5, 6])]
    assert record.drain() is None


def test_replay_starts_where_the_gateway_is() -> None:
    record = make_record(ChoiceState(index=0, emitted_ids=(7, 8)), ChoiceState(index=1, finished=True))
    for offset, token in enumerate((20, 21, 22), 2):
        record.append(output(0, offset, token))
    record.drain()
    record.rewind({0: 3})
    delta = record.drain()
    assert delta is not None
    assert [(c.offset, c.token_ids) for c in delta.choices] == [(3, [21, 22])]
    record.rewind({0: 0})
    again = record.drain()
    assert again is not None
    assert again.choices[0].offset == 2, "tokens of earlier attempts are not here"


def test_skipped_token_is_a_bug() -> None:
    record = make_record()
    with pytest.raises(AssertionError):
        record.append(output(0, 1, 5))


def test_receipt_comes_with_the_first_output_only() -> None:
    record = make_record(ChoiceState(index=0), ChoiceState(index=1))
    record.origin = PromptOrigin(path=PrefillPath.HANDOFF, prefill_worker_id="p")
    record.append(output(0, 0, 5, finish=FinishReason.STOP))
    record.stats = RequestStats(
        num_prompt_tokens=2,
        num_cached_tokens=0,
        num_transferred_tokens=1,
        num_recomputed_tokens=1,
        first_scheduled_s=10.5,
    )
    first = record.drain()
    assert first is not None
    assert first.receipt is not None
    assert (first.receipt.queue_ns, first.receipt.prefill_path) == (500_000_000, PrefillPath.HANDOFF)
    assert not record.is_ended
    record.append(output(1, 0, 6, finish=FinishReason.LENGTH))
    last = record.drain()
    assert last is not None
    assert last.receipt is None
    assert record.is_sent
    record.rewind({})
    again = record.drain()
    assert again is not None
    assert again.receipt == first.receipt


def test_what_became_of_drafts_comes_with_the_last_output() -> None:
    record = make_record()
    record.append(output(0, 0, 5))
    record.drafts = DraftUse(num_drafted=3, num_accepted=2, num_cut=1)
    first = record.drain()
    assert first is not None
    assert first.drafts is None
    record.append(output(0, 1, 6, finish=FinishReason.STOP))
    last = record.drain()
    assert last is not None
    assert last.drafts == record.drafts


def test_error_ends_after_what_was_emitted() -> None:
    record = make_record()
    record.append(output(0, 0, 5))
    record.fail(Busy("full"))
    delta = record.drain()
    assert delta is not None
    assert isinstance(delta.error, Busy)
    assert delta.choices[0].token_ids == [5]
    assert record.is_sent


def test_cancelling_the_last_open_choice_ends_the_request() -> None:
    record = make_record(ChoiceState(index=0), ChoiceState(index=1))
    record.append(output(0, 0, 5, finish=FinishReason.STOP))
    record.cancel_choices({1: None, 9: None})
    assert record.is_ended
    record.append(output(1, 0, 6))
    delta = record.drain()
    assert delta is not None
    assert {c.index: (c.token_ids, c.finish_reason) for c in delta.choices} == {
        0: ([5], FinishReason.STOP),
        1: ([], FinishReason.ABORT),
    }


def test_an_attempt_that_ends_before_its_first_token_counts_what_was_computed_of_its_prompt() -> None:
    record = make_record()
    record.note_step(1, 500)
    early = record.count(MeterTag())
    assert (early.num_computed_tokens, early.num_output_tokens, early.device_ns) == (1, 0, 500)
    record.origin = PromptOrigin(path=PrefillPath.HANDOFF, device_ns=70, num_computed_tokens=2)
    late = record.count(MeterTag())
    assert (late.num_computed_tokens, late.device_ns) == (2, 570), "no more than the prompt has"
    record.stats = RequestStats(
        num_prompt_tokens=2, num_cached_tokens=0, num_transferred_tokens=2, num_recomputed_tokens=0,
        first_scheduled_s=None,
    )  # fmt: skip
    record.note_step(1, 100)
    assert (record.count(MeterTag()).num_computed_tokens, record.device_ns) == (0, 600), "its tokens say it"


def test_what_is_kept_since_a_request_is_written_but_for_what_the_source_or_an_earlier_attempt_found() -> None:
    for num_source, num_before, num_here, writes, cached in (
        (0, 0, 0, 8, 0), (4, 0, 0, 4, 0), (0, 4, 0, 4, 0), (0, 0, 6, 8, 6), (4, 0, 6, 4, 2), (99, 0, 0, 0, 0),
    ):  # fmt: skip
        record = make_record(prompt_ids=tuple(range(10)), meter=MeterTag(num_cached_tokens=num_before))
        record.origin = PromptOrigin(path=PrefillPath.HANDOFF, num_cached_tokens=num_source)
        record.stats = RequestStats(
            num_prompt_tokens=10, num_cached_tokens=num_here, num_transferred_tokens=10 - num_here,
            num_recomputed_tokens=0, first_scheduled_s=None, num_pinned_tokens=8,
            pinned_spans=(PinnedSpan(0, 8, TTL_5M_S),),
        )  # fmt: skip
        assert record.receipt().writes == CacheWrites(num_5m=writes, num_cached=cached)
        assert record.count(MeterTag()).writes == record.receipt().writes
