"""Every generation route x every row of the limits table, through the whole application."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from stratos.common.clock import FakeClock
from stratos.core.requests.grammar import MAX_GRAMMAR_BYTES, MAX_GRAMMAR_CHOICES, MAX_LARK_BYTES, MAX_REGEX_BYTES
from stratos.core.requests.limits import (
    LIMITS,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_TOKEN_IDS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_CONTENT_PARTS,
    MAX_EMBEDDING_INPUTS,
    MAX_EMBEDDING_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_MESSAGES,
    MAX_MODEL_NAME_CHARS,
    MAX_PROMPTS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from tests.support.reference.shipped_model import VOCAB_SIZE
from tests.support.worlds.gateway_routes import full_app, full_routes

MAX_BODY_BYTES = 10**6
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "base", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "base", "prompt": "x"},
    "/v1/embeddings": {"model": "base", "input": "x"},
    "/v1/moderations": {"input": "x"},
    "/v1/score": {"model": "base", "text_1": "x", "text_2": "y"},
    "/v1/rerank": {"model": "base", "query": "x", "documents": ["y"]},
    "/tokenize": {"model": "base", "prompt": "x"},
    "/detokenize": {"model": "base", "tokens": [5]},
    "/v1/responses": {"model": "base", "input": "x"},
    "/v1/messages": {"model": "base", "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"model": "base", "messages": [{"role": "user", "content": "x"}]},
}
OTHERS = {
    "/v1/streams/{stream_id}/cancel",
    "/v1/responses/{response_id}/cancel",
    "/v1/files",
    "/v1/batches",
    "/v1/batches/{batch_id}/cancel",
}
GENERATION = ("/v1/chat/completions", "/v1/completions")
NAMES = {
    ("/v1/chat/completions", "num_logprobs"): ("top_logprobs", {"logprobs": True}),
    ("/v1/completions", "num_logprobs"): ("logprobs", {}),
    ("/v1/chat/completions", "num_prompt_logprobs"): ("prompt_logprobs", {}),
    ("/v1/completions", "num_prompt_logprobs"): ("prompt_logprobs", {}),
    ("/v1/responses", "num_logprobs"): ("top_logprobs", {"include": ["message.output_text.logprobs"]}),
    ("/v1/responses", "max_tokens"): ("max_output_tokens", {}),
}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(full_app(MAX_BODY_BYTES, FakeClock()))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://x", headers={"authorization": "Bearer k"}
    ) as made:
        yield made


def test_every_route_that_takes_a_body_is_walked() -> None:
    posts = {r.path for r in full_routes(MAX_BODY_BYTES) if isinstance(r, Route) and "POST" in (r.methods or ())}
    assert posts - OTHERS == set(BODIES)


def bad_values(row: str) -> list[Any]:
    limit = LIMITS[row]
    values: list[Any] = ["text", True, [], {}, limit.maximum * 2 + 1]
    values.append(limit.minimum if limit.excludes_minimum else limit.minimum - max(abs(limit.minimum), 1))
    if limit.is_integer:
        values.append(1.5)
    return values


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


async def refused(client: httpx.AsyncClient, route: str, param: str, **fields: Any) -> None:
    response = await client.post(route, json={**BODIES[route], **fields})
    error = response.json()["error"]
    assert response.status_code == 400, f"{route} accepts {fields}"
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert len(error["message"]) < 300


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("row", LIMITS)
async def test_numbers_out_of_range_are_refused_by_name(client: httpx.AsyncClient, route: str, row: str) -> None:
    param, more = NAMES.get((route, row), (row, {}))
    for value in bad_values(row):
        await refused(client, route, param, **{**more, param: value})


@pytest.mark.parametrize("route", GENERATION)
async def test_lists_and_texts_over_their_limit_are_refused_by_name(client: httpx.AsyncClient, route: str) -> None:
    cases: list[tuple[str, Any]] = [
        ("stop", ["a"] * (MAX_STOP_STRINGS + 1)),
        ("stop", "a" * (MAX_STOP_STRING_CHARS + 1)),
        ("stop", [""]),
        ("stop", 5),
        ("stop_token_ids", [1] * (MAX_STOP_TOKEN_IDS + 1)),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("logit_bias", {str(i): 1 for i in range(MAX_LOGIT_BIAS + 1)}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [VOCAB_SIZE]),
        ("allowed_token_ids", [1] * (MAX_ALLOWED_TOKEN_IDS + 1)),
        ("bad_token_ids", [1] * (MAX_BAD_TOKEN_IDS + 1)),
        ("bad_token_ids", ["1"]),
        ("bad_words", "word"),
        ("bad_words", ["a"] * (MAX_BAD_WORDS + 1)),
        ("bad_words", ["a" * (MAX_BAD_WORD_CHARS + 1)]),
        ("bad_words", [" "]),
        ("response_format", "json"),
        ("response_format.type", {"type": "yaml"}),
        ("response_format.more", {"type": "text", "more": 1}),
        ("response_format.json_schema", {"type": "json_schema"}),
        ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {"schema": {}}}),
        ("response_format.json_schema.schema", {"type": "json_schema", "json_schema": {"name": "x", "schema": []}}),
        (
            "response_format.json_schema.schema",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "frob"}}},
        ),
        ("structured_outputs", {}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("structured_outputs.whitespace", {"regex": "a", "whitespace": "b"}),
        ("structured_outputs.json", {"json": {"$ref": "http://example.com/x"}}),
        ("structured_outputs.json", {"json": "{"}),
        ("structured_outputs.json", {"json": nested(700)}),
        ("structured_outputs.regex", {"regex": "(["}),
        ("structured_outputs.regex", {"regex": "a" * (MAX_REGEX_BYTES + 1)}),
        ("structured_outputs.regex", {"regex": ""}),
        ("structured_outputs.grammar", {"grammar": "a" * (MAX_LARK_BYTES + 1)}),
        ("structured_outputs.json", {"json": {"enum": ["a" * MAX_GRAMMAR_BYTES]}}),
        ("structured_outputs.json", {"json": {"pattern": "a" * (MAX_REGEX_BYTES + 1)}}),
        ("structured_outputs.choice", {"choice": []}),
        ("structured_outputs.choice", {"choice": ["a", 1]}),
        ("structured_outputs.choice", {"choice": ["a"] * (MAX_GRAMMAR_CHOICES + 1)}),
        ("structured_outputs.grammar", {"grammar": "start: missing"}),
        ("structured_outputs.json_object", {"json_object": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"-5": 1}),
        ("model", "m" * (MAX_MODEL_NAME_CHARS + 1)),
        ("model", None),
        ("stream", 1),
        ("stream_options", {"include_usage": True}),
        ("n", 17),
    ]
    for param, value in cases:
        await refused(client, route, param, **{param.partition(".")[0]: value})


@pytest.mark.parametrize("route", GENERATION)
async def test_two_grammars_are_refused(client: httpx.AsyncClient, route: str) -> None:
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    await refused(client, route, "structured_outputs", **both)


async def test_limits_of_one_route(client: httpx.AsyncClient) -> None:
    chat, completion = GENERATION
    message = {"role": "user", "content": "x"}
    await refused(client, chat, "messages", messages=[message] * (MAX_MESSAGES + 1))
    parts = [{"type": "text", "text": "x"}] * (MAX_CONTENT_PARTS + 1)
    await refused(client, chat, "messages[0].content", messages=[{"role": "user", "content": parts}])
    await refused(client, completion, "prompt", prompt=["x"] * (MAX_PROMPTS + 1))
    await refused(client, completion, "n", prompt=["x"] * MAX_PROMPTS, n=MAX_CHOICES // MAX_PROMPTS + 1)
    await refused(client, completion, "min_tokens", min_tokens=9, max_tokens=8)


@pytest.mark.parametrize(
    ("route", "param", "value"),
    [
        ("/v1/chat/completions", "functions", [{"name": "f"}]),
        ("/v1/chat/completions", "function_call", {"name": "f"}),
        ("/v1/chat/completions", "audio", {"voice": "x"}),
        ("/v1/chat/completions", "modalities", ["text", "audio"]),
        ("/v1/completions", "suffix", "x"),
        ("/v1/completions", "prompt_embeds", "AAAA"),
        ("/v1/chat/completions", "chat_template", "{{ 1 }}"),
        ("/v1/chat/completions", "verbosity", "high"),
        ("/v1/responses", "store", True),
        ("/v1/responses", "previous_response_id", "resp_1"),
        ("/v1/responses", "conversation", "conv_1"),
        ("/v1/responses", "truncation", "auto"),
        ("/v1/responses", "moderation", {"model": "m"}),
        ("/v1/responses", "context_management", [{"type": "compaction"}]),
        ("/v1/responses", "service_tier", "priority"),
    ],
)
async def test_features_that_are_not_there_are_refused(
    client: httpx.AsyncClient, route: str, param: str, value: Any
) -> None:
    response = await client.post(route, json={**BODIES[route], param: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter")


LOGPROBS = ["message.output_text.logprobs"]


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("input", None),
        ("input[0].content", [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 257}]),
        ("instructions", 5),
        ("metadata", {"a": 1}),
        ("include", "x"),
        ("include[1]", [*LOGPROBS, "file_search_call.results"]),
        ("max_tool_calls", 0),
        ("model", None),
        ("model", "m" * (MAX_MODEL_NAME_CHARS + 1)),
        ("parallel_tool_calls", "no"),
        ("reasoning.effort", {"effort": "high"}),
        ("reasoning.summary", {"summary": "detailed"}),
        ("reasoning.more", {"more": 1}),
        ("store", "yes"),
        ("stream", 1),
        ("stream_options.include_usage", {"include_usage": True}),
        ("text", "json"),
        ("text.verbosity", {"verbosity": "low"}),
        ("text.more", {"more": 1}),
        ("text.format", {"format": "json"}),
        ("text.format.type", {"format": {"type": "yaml"}}),
        ("text.format.name", {"format": {"type": "json_schema", "schema": {}}}),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x", "schema": []}}),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "frob"}}}),
        ("text.format.schema", {"format": {"type": "json_schema", "name": "x", "schema": nested(700)}}),
        ("text.format.json_schema", {"format": {"type": "json_schema", "name": "x", "json_schema": {}}}),
        ("tool_choice.type", {"type": "custom"}),
        ("tool_choice.name", {"type": "function", "name": "gone"}),
        ("tools[0].name", [{"type": "function", "name": "a b"}]),
        ("tools[0].function", [{"type": "function", "name": "f", "function": {}}]),
        ("tools[0].parameters", [{"type": "function", "name": "f", "parameters": []}]),
        ("tools", [{"type": "function", "name": "f"}] * 129),
        ("top_logprobs", 3),
        ("n", 2),
        ("messages", [{"role": "user", "content": "x"}]),
        ("response_format", {"type": "json_object"}),
    ],
)
async def test_malformed_responses_are_refused_by_name(client: httpx.AsyncClient, param: str, value: Any) -> None:
    await refused(client, "/v1/responses", param, **{param.partition(".")[0].partition("[")[0]: value})


async def test_a_schema_that_cannot_be_enforced_has_the_name_of_its_route(client: httpx.AsyncClient) -> None:
    tool = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    await refused(client, "/v1/responses", "tools[0].parameters", tools=[tool])


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("input", None),
        ("input", ""),
        ("input", []),
        ("input", 5),
        ("input", ["a", 5]),
        ("input", ["a", ""]),
        ("input", [[1], []]),
        ("input", [[1], "a"]),
        ("input", [-1]),
        ("input", [1.5]),
        ("input", [True]),
        ("input", [VOCAB_SIZE]),
        ("input", [["a"]]),
        ("input", ["a"] * (MAX_EMBEDDING_INPUTS + 1)),
        ("input", [[1]] * (MAX_EMBEDDING_INPUTS + 1)),
        ("encoding_format", "int8"),
        ("encoding_format", 1),
        ("dimensions", 16),
        ("dimensions", 0),
        ("model", None),
        ("model", "m" * (MAX_MODEL_NAME_CHARS + 1)),
        ("stream", True),
    ],
)
async def test_malformed_embeddings_are_refused_by_name(client: httpx.AsyncClient, param: str, value: Any) -> None:
    await refused(client, "/v1/embeddings", param, **{param: value})


@pytest.mark.parametrize(
    "value",
    ["a b" * 40_000, [1] * 4097, [[1] * 4000] * (MAX_EMBEDDING_TOKENS // 4000 + 1), ["a b " * 3000] * 60],
    ids=["long text", "long ids", "many ids", "many texts"],
)
async def test_inputs_that_are_too_long_are_refused(client: httpx.AsyncClient, value: Any) -> None:
    response = await client.post("/v1/embeddings", json={"model": "base", "input": value})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "x",
        [1],
        [{"content": "x"}],
        [{"role": "ro bot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "content": "", "tool_calls": [1]}],
    ],
)
async def test_malformed_messages_are_refused(client: httpx.AsyncClient, messages: Any) -> None:
    response = await client.post("/v1/chat/completions", json={"model": "base", "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


def test_the_table_has_no_limit_that_is_not_finite() -> None:
    assert all(math.isfinite(limit.minimum) and math.isfinite(limit.maximum) for limit in LIMITS.values())


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "soon", "86400001", "9" * 40, "\u0661"])
async def test_a_deadline_out_of_range_is_refused_by_name(client: httpx.AsyncClient, route: str, value: str) -> None:
    headers = {"x-stratos-deadline-ms": value.encode()}
    response = await client.post(route, json=BODIES[route], headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "x-stratos-deadline-ms")
