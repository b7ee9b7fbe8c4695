"""What records and messages make of a peer that is older or newer."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import BadRequest, Busy, FeatureUnavailable, Internal
from stratos.core.cache_changes import CacheChanges, CacheLayout
from stratos.core.generation import ChoiceDelta, DraftUse, Receipt, RequestDelta, Submission
from stratos.core.placement import Placement
from stratos.core.requests.records import (
    ChoiceState,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    RequestKey,
    TokenLogprob,
)
from stratos.core.requests.sampling_params import SamplingParams
from stratos.rpc.codec.cache import CACHE_CHANGES, LAYOUT
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos.rpc.codec.generation import (
    delta_from_pb,
    delta_to_pb,
    step_to_pb,
    submit_from_pb,
    submit_to_part,
    tokens_from_pb,
)
from stratos.rpc.codec.placement import PLACEMENT, placement_request_from_pb, placement_request_to_part
from stratos.rpc.codec.unknown_fields import refuse_unknown_fields
from tests.support.worlds.fleet_samples import IDENTITY, make_request, make_status

UNKNOWN_FIELD = bytes([0b11111000, 0b00111111, 1])
"""Field 1023 as a varint."""


def test_a_status_without_features_offers_none() -> None:
    message = WORKER_STATUS.to_pb(make_status())
    assert WORKER_STATUS.from_pb(message) == make_status()
    message.ClearField("features")
    message.ClearField("protocol_version")
    status = WORKER_STATUS.from_pb(message)
    assert (status.features, status.protocol_version) == (frozenset(), 0)


def test_placements_keep_what_they_say_of_prefixes() -> None:
    request = make_request(block_hashes=(2**64 - 1, 7), session_key=2**63)
    assert (
        placement_request_from_pb(router_pb2.ScheduleRequest(**placement_request_to_part(request, 0.0)), 0.0) == request
    )
    worker = make_status().ref
    for layout in (None, CacheLayout(IDENTITY, 32)):
        placement = Placement(decode=worker, handoff_id="h", cache_layout=layout)
        assert PLACEMENT.from_pb(PLACEMENT.to_pb(placement)) == placement
    with pytest.raises(BadRequest):
        LAYOUT.from_pb(router_pb2.CacheLayout())


def test_changes_of_a_cache_must_name_their_process_and_run_forwards() -> None:
    changes = CacheChanges(after=3, last=9, stored=(2**64 - 1,), removed=(1, 2), is_dump=True)
    assert CACHE_CHANGES.from_pb(CACHE_CHANGES.to_pb(changes, incarnation="inc")) == changes
    with pytest.raises(BadRequest):
        CACHE_CHANGES.from_pb(CACHE_CHANGES.to_pb(changes, incarnation=""))
    with pytest.raises(BadRequest):
        CACHE_CHANGES.from_pb(CACHE_CHANGES.to_pb(CacheChanges(after=3, last=2), incarnation="inc"))


def test_an_unknown_finish_reason_is_no_open_choice() -> None:
    delta = decode_pb2.ChoiceDelta()
    delta.MergeFromString(bytes([decode_pb2.ChoiceDelta.FINISH_REASON_FIELD_NUMBER << 3, 99]))
    with pytest.raises(Internal, match="finish reason 99"):
        delta_from_pb(decode_pb2.RequestOutput(request_id="r", deltas=[delta]))


KEY = RequestKey("r", 2)
TOKEN = ChoiceDelta(index=0, offset=3, token_ids=[7])
MORE: list[RequestDelta] = [
    RequestDelta(key=KEY, choices=(TOKEN, TOKEN)),
    RequestDelta(key=KEY),
    RequestDelta(key=KEY, choices=(replace(TOKEN, index=1),)),
    RequestDelta(key=KEY, choices=(replace(TOKEN, token_ids=[7, 8]),)),
    RequestDelta(key=KEY, choices=(replace(TOKEN, token_ids=[]),)),
    RequestDelta(key=KEY, choices=(replace(TOKEN, finish_reason=FinishReason.LENGTH),)),
    RequestDelta(key=KEY, choices=(replace(TOKEN, logprobs=[PositionLogprobs(TokenLogprob(7, -1.0, 1))]),)),
    RequestDelta(key=KEY, choices=(TOKEN,), receipt=Receipt()),
    RequestDelta(key=KEY, choices=(TOKEN,), error=Busy("full")),
    RequestDelta(key=KEY, choices=(TOKEN,), prompt_logprobs=(PositionLogprobs(TokenLogprob(7, -1.0, 1)),)),
    RequestDelta(key=KEY, choices=(TOKEN,), drafts=DraftUse(num_drafted=1)),
]


def test_a_token_of_choice_0_goes_into_the_columns_of_a_gateway_that_reads_them() -> None:
    delta = RequestDelta(key=KEY, choices=(TOKEN,))
    message = step_to_pb(9, 4, [delta], {KEY: 4})
    columns = message.tokens
    assert (list(columns.submits), list(columns.offsets), list(columns.token_ids)) == ([4], [3], [7])
    assert (message.engine_step, message.num_submits, len(message.outputs)) == (9, 4, 0)
    for submit_of in ({}, {RequestKey("r", 3): 4}):
        message = step_to_pb(9, 4, [delta], submit_of)
        assert not message.HasField("tokens")
        assert [delta_from_pb(output) for output in message.outputs] == [delta_from_pb(delta_to_pb(delta))]


def test_every_fact_of_news_keeps_them_out_of_the_columns() -> None:
    message = step_to_pb(9, 4, MORE, {KEY: 4})
    assert list(message.outputs) == [delta_to_pb(delta) for delta in MORE]
    assert not message.HasField("tokens")
    changed = {field.name for more in MORE for field in fields(more) if getattr(more, field.name)}
    assert changed == {field.name for field in fields(RequestDelta)}
    plain = ChoiceDelta(index=0, offset=3, token_ids=[7])
    choices = [choice for more in MORE for choice in more.choices]
    differing = {f.name for c in choices for f in fields(c) if getattr(c, f.name) != getattr(plain, f.name)}
    assert differing | {"offset"} == {field.name for field in fields(ChoiceDelta)}


def test_tokens_alone_are_read_as_the_whole_message_would_be() -> None:
    for delta in (RequestDelta(key=KEY, choices=(TOKEN,)), *MORE):
        message, whole = delta_to_pb(delta), delta_from_pb(delta_to_pb(delta))
        if len(delta.choices) == 1 and replace(whole, choices=()) == RequestDelta(key=KEY):
            assert (tokens_from_pb(message),) == whole.choices
        else:
            assert tokens_from_pb(message) is None, delta


def test_an_attempt_says_how_much_of_it_is_an_earlier_answer() -> None:
    request = EngineRequest(
        key=RequestKey("r", 1), prompt_ids=(1,), choices=(ChoiceState(index=0, emitted_ids=(5, 6, 7)),),
        sampling=SamplingParams(), seed=1, num_prior_tokens=2,
    )  # fmt: skip
    submission = Submission(request=request, model_digest="m", handoff_id="h")
    assert submit_from_pb(decode_pb2.Submit(**submit_to_part(submission, 0.0)), 0.0) == submission
    assert request.is_resumed
    assert not replace(request, num_prior_tokens=3).is_resumed


def test_unknown_fields_are_found_at_any_depth_and_known_ones_are_not() -> None:
    submit = decode_pb2.Submit(
        prompt_ids=[1, 2],
        choices=[decode_pb2.ChoiceState(index=0), decode_pb2.ChoiceState(index=1)],
        sampling=decode_pb2.SamplingParams(
            logit_bias={1: 2.0}, bad_sequences=[decode_pb2.TokenSequence(token_ids=[1])], num_logprobs=0
        ),
    )
    refuse_unknown_fields(submit)
    submit.sampling.bad_sequences[0].MergeFromString(UNKNOWN_FIELD)
    with pytest.raises(FeatureUnavailable, match=r"field 1023 of stratos\.api\.worker\.v1\.TokenSequence"):
        refuse_unknown_fields(submit)
