"""For any value of a parameter the client gets one clear 400 that names it, or is served: never a bug of ours.

The gateway's router is full, so a request that was accepted is answered with 503.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratos.core.requests.limits import LIMITS, check_logit_bias
from tests.support.examples import examples
from tests.support.promises import Promised
from tests.support.worlds.gateway_routes import full_app

CHAT = '"model":"base","messages":[{"role":"user","content":"x"}]'
COMPLETION = '"model":"base","prompt":"x"'
RESPONSE = '"model":"base","input":"x"'
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION, "/v1/responses": RESPONSE, "/v1/messages": CHAT}
NUMBERS = [name for name in LIMITS if name not in ("num_logprobs", "num_prompt_logprobs", "dimensions")]
NUMBERS += ["prompt_logprobs"]
ROUTE_NUMBERS = {
    "/v1/chat/completions": ["top_logprobs", "max_completion_tokens"],
    "/v1/completions": ["logprobs", "best_of", "max_completion_tokens"],
    "/v1/responses": ["top_logprobs", "max_output_tokens", "max_tool_calls"],
    "/v1/messages": [],
}
NEEDED = {"/v1/chat/completions": '"logprobs":true,', "/v1/responses": '"include":["message.output_text.logprobs"],'}
"""Goes with ``top_logprobs``."""
LISTS = ["stop_token_ids", "allowed_token_ids", "bad_token_ids", "bad_words"]
OTHERS = ["stop", "logit_bias", "stream", "stream_options", "response_format", "structured_outputs", "ignore_eos"]
OTHERS += ["include_stop_str_in_output", "return_token_ids", "echo", "logprobs", "model", "messages", "prompt", "user"]
OTHERS += ["service_tier", "skip_special_tokens", "tools", "suffix", "metadata", "tool_choice"]
OTHERS += ["parallel_tool_calls", "input", "instructions", "text", "reasoning", "include", "store", "truncation"]

NO_NUMBERS = [
    "NaN",
    "-NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "nan",
    "0x10",
    "01",
    "+1",
    "1_000",
    ".5",
    "9" * 400,
]
"""Not JSON at all."""
WRONG_FOR_NUMBERS = [
    '"1"', '"NaN"', '""', "true", "false", "[]", "{}", "[1]", '{"a":1}', "1e308", "-1e308", "9223372036854775808",
    "-9223372036854775809000", "123456789012345678901234567890", "9" * 300, "-5", "1e21",
]  # fmt: skip


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with open_client() as made:
        yield made


def open_client() -> httpx.AsyncClient:
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(full_app(2 << 20)), base_url="http://x", headers=headers)


def body_with(route: str, name: str, raw: str) -> str:
    """The route's least body with one field, in JSON's last-one-wins order."""
    return f"{{{ROUTES[route]},{json.dumps(name)}:{raw}}}"


async def post(client: httpx.AsyncClient, route: str, content: str | bytes) -> tuple[int, dict[str, Any]]:
    response = await client.post(route, content=content)
    error = response.json()["error"]
    assert set(error) == {"type", "message", "param", "code"}
    assert 0 < len(error["message"]) < 400
    assert "\n" not in error["message"]
    return response.status_code, error


@pytest.mark.parametrize("route", ROUTES)
async def test_numbers_that_json_does_not_have_are_no_json(client: httpx.AsyncClient, route: str) -> None:
    for name in (*NUMBERS, "seed", "logit_bias"):
        for raw in NO_NUMBERS if name != "logit_bias" else [f'{{"5":{raw}}}' for raw in NO_NUMBERS]:
            status, error = await post(client, route, body_with(route, name, raw))
            assert (status, error["code"]) == (400, "invalid_json"), (name, raw)


@pytest.mark.parametrize("route", ROUTES)
async def test_wrong_numbers_are_refused_by_name(client: httpx.AsyncClient, route: str) -> None:
    for name in [*NUMBERS, *ROUTE_NUMBERS[route]]:
        more = NEEDED[route] if name == "top_logprobs" else ""
        for raw in WRONG_FOR_NUMBERS:
            is_allowed = raw == "-5" and name == "seed"
            status, error = await post(client, route, "{" + more + body_with(route, name, raw)[1:])
            assert (status, error["param"]) == ((503, None) if is_allowed else (400, name)), (name, raw)


@pytest.mark.parametrize("route", ROUTES)
async def test_wrong_lists_are_refused_by_name(client: httpx.AsyncClient, route: str) -> None:
    long = json.dumps(list(range(4000)) * 5)
    for name in LISTS:
        for raw in ("1", '"x"', "{}", "true", "[null]", "[[]]", "[{}]", "[1.5]", "[true]", "[-1]", "[1e30]", long):
            status, error = await post(client, route, body_with(route, name, raw))
            assert (status, error["param"]) == (400, name), (name, raw[:40])


@pytest.mark.parametrize(
    "raw",
    ["[]", "5", '"5"', "true", '{"x":1}', '{"":1}', '{"1.0":1}', '{" 1":1}', '{"+1":1}', '{"\u0663":1}', '{"1e2":1}',
     '{"5":null}', '{"5":"1"}', '{"5":true}', '{"5":[1]}', '{"5":101}', '{"5":-1e300}', '{"4096":1}',
     '{"' + "9" * 5000 + '":1}', json.dumps({str(i): 0 for i in range(4096)}),
     json.dumps({"0" * i: 0 for i in range(1, 302)})],
)  # fmt: skip
async def test_logit_bias_is_refused_by_name(client: httpx.AsyncClient, raw: str) -> None:
    for route in ROUTES:
        status, error = await post(client, route, body_with(route, "logit_bias", raw))
        assert (status, error["param"]) == (400, "logit_bias")


async def test_a_million_entries_are_refused_at_once(client: httpx.AsyncClient, promised: Promised) -> None:
    million = {str(i): 1 for i in range(10**6)}
    with promised("a million entries of logit_bias are refused", 0.1), pytest.raises(Exception, match="at most 300"):
        check_logit_bias(million, 10**6)
    response = await client.post(
        "/v1/completions", content=body_with("/v1/completions", "logit_bias", json.dumps(million))
    )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    for number, param, code in ((20_000, "logit_bias", "invalid_request"), (150_000, None, "too_many_values")):
        most = json.dumps(dict.fromkeys(map(str, range(number)), 1))
        status, error = await post(client, "/v1/completions", body_with("/v1/completions", "logit_bias", most))
        assert (status, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"model":"\xed\xa0\x80"}', b'{"model":"\\ud800"}',
     b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 100_000, b"{}", b'{"model":"base","model":null}'],
)  # fmt: skip
async def test_bodies_that_are_none_are_refused(client: httpx.AsyncClient, content: bytes) -> None:
    for route in ROUTES:
        status, error = await post(client, route, content)
        assert (status, error["type"]) == (400, "invalid_request_error")


async def test_a_body_that_can_be_read_and_not_recorded_is_refused(client: httpx.AsyncClient) -> None:
    deep = "[" * 300 + "]" * 300
    for route in ROUTES:
        response = await client.post(route, content=body_with(route, "odd", deep), headers={"idempotency-key": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


NAMES = ["type", "json_schema", "name", "schema", "regex", "choice", "role", "content", "text", "5", "function"]
NAMES += ["parameters", "tool_calls", "tool_call_id", "arguments", "id", "reasoning_details"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "text",
            "json_object",
            "json_schema",
            "a+",
            "base",
            "auto",
            "user",
            "5",
            "function",
            "tool",
            "assistant",
            "message",
            "function_call",
            "function_call_output",
            "tool_use",
            "tool_result",
            "thinking",
            "enabled",
            "any",
            "reasoning",
            "input_text",
            "output_text",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "json_schema",
                    "name",
                    "schema",
                    "regex",
                    "choice",
                    "role",
                    "content",
                    "text",
                    "5",
                    "function",
                    "parameters",
                    "tool_calls",
                    "tool_call_id",
                    "arguments",
                    "id",
                    "reasoning_details",
                    "output",
                    "call_id",
                    "tool_use_id",
                    "input",
                    "budget_tokens",
                    "cache_control",
                    "format",
                    "summary",
                ]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("route", ROUTES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
@given(fields=st.dictionaries(st.sampled_from([*NUMBERS, *LISTS, *OTHERS]) | st.text(max_size=6), JSON, max_size=3))
async def test_no_body_finds_a_bug(route: str, fields: dict[str, Any]) -> None:
    async with open_client() as client:
        body = {**json.loads("{" + ROUTES[route] + "}"), **fields}
        status, error = await post(client, route, json.dumps(body))
        assert status in (400, 404, 503), error
        assert error["code"] != "internal_error"
        if status == 400 and error["param"] is not None:
            known = (*fields, "messages", "prompt", "top_logprobs", "n", "min_tokens")
            assert error["param"].startswith(tuple(name[:100] for name in known))
