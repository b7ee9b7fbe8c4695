"""The table of features names every field of a request, so that a new one cannot be forgotten."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2, embed_pb2
from stratos.core import features as table
from stratos.core.adapter import AdapterRef
from stratos.core.features import Feature, features_of_call, required_features
from stratos.core.requests.embedding import EmbedCall, PoolingKind
from stratos.core.requests.grammar import GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.requests.watermark import Watermark


def field_names(descriptor: Any, prefix: str = "") -> Iterator[str]:
    yield from (prefix + field.name for field in descriptor.fields)


def unlisted(descriptor: Any, entries: Mapping[str, Feature | None], prefix: str = "") -> set[str]:
    return set(field_names(descriptor, prefix)) ^ {
        name for name in entries if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }


def test_every_field_of_a_submission_is_in_the_table() -> None:
    submit = decode_pb2.Submit.DESCRIPTOR
    assert unlisted(submit, table.SUBMIT) == set()
    assert unlisted(submit.fields_by_name["choices"].message_type, table.SUBMIT, "choices.") == set()
    assert unlisted(submit.fields_by_name["terms"].message_type, table.SUBMIT, "terms.") == set()
    assert unlisted(decode_pb2.SamplingParams.DESCRIPTOR, table.SAMPLING) == set()
    assert {field.name for field in dataclasses.fields(SamplingParams)} == set(table.SAMPLING)


def test_every_field_of_an_embeddings_call_is_in_the_table() -> None:
    assert unlisted(embed_pb2.EmbedRequest.DESCRIPTOR, table.EMBED) == set()


def test_a_field_without_an_entry_is_found() -> None:
    rest = {name: feature for name, feature in table.SAMPLING.items() if name != "grammar"}
    assert unlisted(decode_pb2.SamplingParams.DESCRIPTOR, rest) == {"grammar"}


def test_every_kind_has_a_feature() -> None:
    assert set(table.GRAMMARS) == set(GrammarKind)
    assert set(table.POOLINGS) == set(PoolingKind)


def test_every_feature_is_needed_by_something() -> None:
    listed = {*table.SAMPLING.values(), *table.SUBMIT.values(), *table.EMBED.values(), *table.GRAMMARS.values()}
    assert listed - {table.BASIC} == set(Feature)


def make_request(
    sampling: SamplingParams, choices: tuple[ChoiceState, ...] = (ChoiceState(index=0),), adapter: str = ""
) -> EngineRequest:
    terms = RequestTerms(tenant="t", adapter=AdapterRef(digest=adapter, uri=""))
    return EngineRequest(
        key=RequestKey("r", 0), prompt_ids=(1,), choices=choices, sampling=sampling, seed=1, terms=terms
    )


BASIC_ONLY = SamplingParams(
    temperature=0.5, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.5, frequency_penalty=0.5,
    presence_penalty=0.5, logit_bias={1: 2.0}, max_tokens=3, min_tokens=1, ignore_eos=True, stop_token_ids=(1,),
    drafts_off=True,
    num_logprobs=0,
)  # fmt: skip
CASES = [
    (SamplingParams(), set()),
    (BASIC_ONLY, set()),
    (SamplingParams(allowed_token_ids=(1,)), {Feature.ALLOWED_TOKENS}),
    (SamplingParams(bad_sequences=((1,),)), {Feature.BAD_SEQUENCES}),
    (SamplingParams(grammar=GrammarSpec(GrammarKind.REGEX, "a")), {Feature.GRAMMAR}),
    (SamplingParams(num_prompt_logprobs=0), {Feature.PROMPT_LOGPROBS}),
    (SamplingParams(watermark=Watermark(key=b"k" * 16)), {Feature.WATERMARK}),
]


@pytest.mark.parametrize(("sampling", "needed"), CASES)
def test_sampling_parameters_need_their_features(sampling: SamplingParams, needed: set[Feature]) -> None:
    assert required_features(make_request(sampling)) == needed


def test_the_cases_set_every_sampling_parameter() -> None:
    plain = SamplingParams()
    changed = {
        f.name for f in dataclasses.fields(plain) for s, _ in CASES if getattr(s, f.name) != getattr(plain, f.name)
    }
    assert changed == set(table.SAMPLING)


def test_choices_and_adapters_need_their_features() -> None:
    plain, two = SamplingParams(), (ChoiceState(index=0), ChoiceState(index=1))
    assert required_features(make_request(plain, two)) == {Feature.SEVERAL_CHOICES}
    assert required_features(make_request(plain, (ChoiceState(index=0, emitted_ids=(5,)),))) == {Feature.RESUME}
    ended = (ChoiceState(index=0), ChoiceState(index=1, finished=True))
    assert required_features(make_request(plain, ended)) == {Feature.RESUME, Feature.SEVERAL_CHOICES}
    assert required_features(make_request(plain, adapter="ab")) == {Feature.ADAPTERS}
    rest = dataclasses.replace(make_request(plain, (ChoiceState(index=0, emitted_ids=(5,)),)), num_prior_tokens=1)
    assert required_features(rest) == {Feature.RESUME, Feature.PRIOR_TOKENS}


@pytest.mark.parametrize("pooling", PoolingKind)
def test_an_embeddings_call_needs_embeddings(pooling: PoolingKind) -> None:
    call = EmbedCall(inputs=((1,),), model_digest="m", pooling=pooling, normalizes=True, num_dimensions=None)
    assert features_of_call(call) == {Feature.EMBEDDINGS}
    tuned = dataclasses.replace(call, terms=RequestTerms(tenant="t", adapter=AdapterRef(digest="ab", uri="")))
    assert features_of_call(tuned) == {Feature.EMBEDDINGS, Feature.ADAPTERS}


@pytest.mark.parametrize(("distance", "is_spoken"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_versions_side_by_side_speak_with_each_other(distance: int, is_spoken: bool) -> None:
    assert table.can_speak_with(table.PROTOCOL_VERSION + distance) is is_spoken
