"""Sampling parameters on their way from a JSON body to a decode worker's engine."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from stratos.api.worker.v1 import decode_pb2
from stratos.common.errors import BadRequest
from stratos.core.requests import limits
from stratos.core.requests.grammar import ANY_OBJECT, GrammarKind, GrammarSpec
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import Watermark
from stratos.core.tenant import Tenant
from stratos.rpc.codec.generation import SAMPLING
from stratos.worker.decode.checks import check_sampling
from stratos.worker.engine_client.wire import METHODS, decode, encode
from stratos_gateway.preparation.dialects import COMPLETION
from stratos_gateway.preparation.generation import GenerationPreparer
from tests.support.reference.shipped_model import preparation_tools, served_model

CALLER = Tenant(name="t")
EVERYTHING = SamplingParams(
    temperature=0.5,
    top_p=0.75,
    top_k=7,
    min_p=0.125,
    repetition_penalty=1.5,
    frequency_penalty=-0.5,
    presence_penalty=0.25,
    logit_bias={3: 1.5, 9: -2.0},
    max_tokens=33,
    min_tokens=5,
    ignore_eos=True,
    stop_token_ids=(8, 9),
    allowed_token_ids=(1, 2, 3),
    bad_sequences=((4,), (5, 6, 7)),
    grammar=GrammarSpec(GrammarKind.REGEX, "[0-9]+ größer"),
    drafts_off=True,
    num_logprobs=4,
    watermark=Watermark(key=b"k" * 16, gamma=0.5, delta=1.5, num_context_tokens=2),
    num_prompt_logprobs=0,
)


def travel(params: SamplingParams) -> SamplingParams:
    message = decode_pb2.SamplingParams.FromString(SAMPLING.to_pb(params).SerializeToString())
    received = SAMPLING.from_pb(message)
    check_sampling(received, served_model().base.vocab_size)
    return received


@pytest.mark.parametrize("params", [SamplingParams(), EVERYTHING])
def test_nothing_is_lost_between_gateway_and_worker(params: SamplingParams) -> None:
    assert travel(params) == params


@pytest.mark.parametrize("params", [SamplingParams(), EVERYTHING])
def test_nothing_is_lost_between_worker_and_engine_process(params: SamplingParams) -> None:
    choices = (ChoiceState(index=1, emitted_ids=(4, 5)),)
    request = EngineRequest(key=RequestKey("r", 3), prompt_ids=(1, 2), choices=choices, sampling=params, seed=-(2**63))
    assert decode(encode((request,)), METHODS["add"][0]) == (request,)


def test_the_travelling_example_sets_every_field() -> None:
    plain = SamplingParams()
    assert not [f.name for f in fields(plain) if getattr(plain, f.name) == getattr(EVERYTHING, f.name)]


async def prepared(**body: Any) -> SamplingParams:
    tools = preparation_tools(served_model())
    ready = await GenerationPreparer(tools, COMPLETION).prepare({"model": "base", "prompt": "x", **body}, CALLER, "")
    return ready.specs[0].sampling


async def test_bad_words_become_both_spellings() -> None:
    encode = served_model().tokenizer.encode_plain
    params = await prepared(bad_words=[" return", "None"], bad_token_ids=[7, 7])
    assert params.bad_sequences == (
        (7,), tuple(encode("return")), tuple(encode(" return")), tuple(encode("None")), tuple(encode(" None"))
    )  # fmt: skip
    assert (await prepared(allowed_token_ids=[5, 6])).allowed_token_ids == (5, 6)


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}}}'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
        ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA_TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, GrammarSpec(GrammarKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec(GrammarKind.REGEX, "a+")),
        ({"structured_outputs": {"choice": ["ö", '"']}}, GrammarSpec(GrammarKind.CHOICE, '["ö","\\""]')),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarSpec(GrammarKind.LARK, 'start: "a"')),
    ],
)
async def test_grammars_keep_their_text_and_the_order_of_properties(
    body: dict[str, Any], expected: GrammarSpec | None
) -> None:
    assert (await prepared(**body)).grammar == expected


def test_a_worker_refuses_a_grammar_of_an_unknown_kind() -> None:
    message = SAMPLING.to_pb(SamplingParams())
    message.grammar.kind, message.grammar.text = "yaml", "x"
    with pytest.raises(BadRequest) as caught:
        check_sampling(SAMPLING.from_pb(message), served_model().base.vocab_size)
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    ("fields_", "param"),
    [
        ({"allowed_token_ids": [1 << 20]}, "allowed_token_ids"),
        ({"bad_sequences": [decode_pb2.TokenSequence()]}, "bad_words"),
        ({"bad_sequences": [decode_pb2.TokenSequence(token_ids=[1 << 20])]}, "bad_words"),
        (
            {"bad_sequences": [decode_pb2.TokenSequence(token_ids=[1])] * (limits.MAX_BAD_SEQUENCES + 1)},
            "bad_words",
        ),
    ],
)
def test_a_worker_checks_what_it_is_sent(fields_: dict[str, Any], param: str) -> None:
    message = SAMPLING.to_pb(SamplingParams())
    for name, value in fields_.items():
        getattr(message, name).extend(value)
    with pytest.raises(BadRequest) as caught:
        check_sampling(SAMPLING.from_pb(message), served_model().base.vocab_size)
    assert caught.value.param == param
