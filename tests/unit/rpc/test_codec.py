"""What records and messages make of a peer that is older or newer."""

from __future__ import annotations

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import FeatureUnavailable, Internal
from stratos.rpc.codec.fleet import status_from_pb, status_to_pb
from stratos.rpc.codec.generation import delta_from_pb
from stratos.rpc.codec.unknown_fields import refuse_unknown_fields
from tests.support.fleet_samples import make_status

UNKNOWN_FIELD = bytes([0b11111000, 0b00111111, 1])
"""Field 1023 as a varint."""


def test_a_status_without_features_offers_none() -> None:
    message = status_to_pb(make_status())
    assert status_from_pb(message) == make_status()
    message.ClearField("features")
    message.ClearField("protocol_version")
    status = status_from_pb(message)
    assert (status.features, status.protocol_version) == (frozenset(), 0)


def test_an_unknown_finish_reason_is_no_open_choice() -> None:
    delta = decode_pb2.ChoiceDelta()
    delta.MergeFromString(bytes([decode_pb2.ChoiceDelta.FINISH_REASON_FIELD_NUMBER << 3, 99]))
    with pytest.raises(Internal, match="finish reason 99"):
        delta_from_pb(decode_pb2.RequestOutput(request_id="r", deltas=[delta]))


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
