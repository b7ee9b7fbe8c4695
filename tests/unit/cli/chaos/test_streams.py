"""A client whose gateway is lost comes back for the rest of its stream, or for all of it where there is no record."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from stratos.cli.chaos import streams
from stratos.cli.chaos.streams import StreamRun, bodies, lost_records, refused_features, text_of

EVENTS = [
    {"choices": [{"index": 0, "text": "a", "token_ids": [1]}]},
    {"choices": [{"index": 0, "text": "b", "token_ids": [2]}]},
    {"choices": [{"index": 0, "text": "c", "token_ids": [3], "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}},
]


class Lost(httpx.AsyncByteStream):
    """Some events, then a cut in the middle of the next one."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in range(self.begin, self.end):
            yield f"id: {number}\ndata: {json.dumps(EVENTS[number])}\n\n".encode()
        if self.end < len(EVENTS):
            yield f"id: {self.end}\n".encode()
            raise httpx.ReadError("its gateway is gone")


def refusal(code: str) -> httpx.Response:
    return httpx.Response(503, json={"error": {"code": code}} if code else None)


async def streamed(answers: list[httpx.Response], *, are_recorded: bool) -> tuple[StreamRun, list[httpx.Request]]:
    """The first of the streams, where these answers come one after the other."""
    asked = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answers.pop(0)

    transport = httpx.MockTransport(answer)
    run = StreamRun(
        "http://platform/v1", "key", "run", ["base"], are_recorded=are_recorded, num_streams=1, transport=transport
    )

    async def nothing(_: asyncio.Event) -> None:
        return

    await run.run(nothing)
    return run, asked


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RETURN_PAUSE_S", 0)


async def test_the_rest_of_a_record_is_fetched() -> None:
    recorded = {"x-stratos-stream": "strm_1"}
    answers = [
        httpx.Response(200, headers=recorded, stream=Lost(0, 2)),
        refusal("dependency_unavailable"),
        httpx.Response(200, headers=recorded, text='data: {"error": {"code": "stream_moved"}}\n\n'),
        httpx.Response(200, headers=recorded, text='data: {"error": {"code": "draining"}}\n\n'),
        httpx.Response(200, headers=recorded, stream=Lost(2, 4)),
    ]
    run, asked = await streamed(answers, are_recorded=True)
    (result,) = (one for one in run.results.values() if one.times)
    assert (result.texts, result.token_ids, result.usage, result.error) == ({0: "abc"}, {0: [1, 2, 3]}, (1, 3), "")
    assert (result.num_returns, result.num_resumed, result.num_begun_anew) == (4, 3, 0)
    assert lost_records([result]) == []
    assert [request.headers.get("last-event-id") for request in asked] == [None, "1", "1", "1", "1"]
    assert {request.headers["idempotency-key"] for request in asked} == {"run-0"}


async def test_an_answer_for_which_the_record_is_not_known_begins_again() -> None:
    recorded = {"x-stratos-stream": "strm_1"}
    answers = [
        httpx.Response(200, headers=recorded, stream=Lost(0, 2)),
        httpx.Response(200, headers={"x-stratos-stream": "none"}, stream=Lost(0, 1)),
        httpx.Response(200, headers=recorded, stream=Lost(0, 4)),
    ]
    run, asked = await streamed(answers, are_recorded=True)
    (result,) = (one for one in run.results.values() if one.times)
    assert (result.texts, result.num_returns) == ({0: "abc"}, 2)
    assert (result.num_resumed, result.num_begun_anew) == (0, 2)
    assert "computed and billed again" in lost_records([result])[0]
    assert [request.headers.get("last-event-id") for request in asked] == [None, "1", None]


async def test_without_a_record_all_of_it_is_asked_for_again() -> None:
    none = {"x-stratos-stream": "none"}
    answers = [httpx.Response(200, headers=none, stream=Lost(0, end)) for end in (2, 4)]
    run, asked = await streamed(answers, are_recorded=True)
    (result,) = (one for one in run.results.values() if one.times)
    assert (result.texts, result.num_returns, result.num_begun_anew) == ({0: "abc"}, 1, 1)
    assert lost_records([result, dataclasses.replace(result, name="0-logprobs-base")]) == lost_records([result])
    assert "last-event-id" not in asked[1].headers


@pytest.mark.parametrize("code", ["overloaded", "idempotency_key_reused", ""])
async def test_a_refusal_that_no_lost_gateway_explains_is_final(code: str) -> None:
    run, asked = await streamed([httpx.Response(200, stream=Lost(0, 2)), refusal(code)], are_recorded=True)
    (result,) = run.results.values()
    assert "503" in result.error
    assert len(asked) == 2


async def test_features_that_a_model_refuses_are_left_out() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400 if request.url.path.endswith("/chat/completions") else 200)

    refused = await refused_features("http://platform/v1", "key", "base", httpx.MockTransport(answer))
    assert refused == ("tools",)
    assert not any("messages" in body for _, body in bodies(["base"], without=refused))
    assert any("messages" in body for _, body in bodies(["base"]))


async def test_where_no_gateway_is_struck_nobody_comes_back() -> None:
    run, asked = await streamed([httpx.Response(200, stream=Lost(0, 2))], are_recorded=False)
    (result,) = (one for one in run.results.values() if one.times)
    assert "its gateway is gone" in result.error
    assert "idempotency-key" not in asked[0].headers


def test_content_and_calls_of_a_chat_are_its_text() -> None:
    call = {"index": 0, "function": {"name": "plot", "arguments": "{}"}}
    assert text_of({"delta": {"content": "x", "tool_calls": [call]}}) == "xplot{}"
    assert text_of({"delta": {}}) == ""
