"""Bodies that are refused."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stratos.common.errors import BadRequest, RequestTooLarge
from stratos_gateway.http.body import read_json, whole_json


async def test_a_body_that_has_come_whole_and_is_too_large_is_refused_at_once() -> None:
    """Nothing more of it is waited for."""
    messages: list[Any] = [
        {"type": "http.request", "body": b"x" * 9, "more_body": True},
        {"type": "http.request", "body": b"x" * 9},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    with pytest.raises(RequestTooLarge):
        await read_json(Request({"type": "http", "headers": []}, receive), max_bytes=10, timeout_s=60.0)


def cycle(body: bytes, *, more_body: bool = False) -> RequestResponseCycle:
    """A request as uvicorn has it."""
    made = RequestResponseCycle(
        scope={}, transport=Mock(), flow=Mock(), logger=Mock(), access_logger=Mock(), access_log=False,
        default_headers=[], message_event=asyncio.Event(), expect_100_continue=False, keep_alive=True,
        on_response=lambda: None,
    )  # type: ignore[typeddict-item] # fmt: skip
    made.body, made.more_body = bytearray(body), more_body
    made.message_event.set()
    return made


def asked(one: RequestResponseCycle, kind: bytes = b"application/json") -> Request:
    return Request({"type": "http", "headers": [(b"content-type", kind)]}, one.receive)  # type: ignore[arg-type]


async def test_a_short_body_that_is_there_is_taken_without_waiting() -> None:
    whole = cycle(b'{"a": 1}')
    assert whole_json(asked(whole), 100) == {"a": 1}
    assert (whole.body, whole.message_event.is_set()) == (b"", False), "``receive`` waits for the end of the client"
    with pytest.raises(BadRequest, match="must be application/json"):
        whole_json(asked(cycle(b"{}"), b"text/plain"), 100)
    with pytest.raises(BadRequest, match="not valid JSON"):
        whole_json(asked(cycle(b"")), 100)


@pytest.mark.parametrize("one", [(b'{"a"', {"more_body": True}), (b"[" + b"1," * 50 + b"1]", {}), (b" " * 32769, {})])
async def test_of_any_other_body_nothing_is_taken(one: tuple[bytes, dict[str, Any]]) -> None:
    body, more = one
    other = cycle(body, **more)
    assert whole_json(asked(other), 100 if len(body) < 200 else 100_000) is None
    assert (other.body, other.message_event.is_set()) == (body, True)


async def test_a_receive_of_no_server_of_ours_is_asked_as_ever() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    request = Request({"type": "http", "headers": []}, receive)
    assert whole_json(request, 100) is None
    assert await read_json(request, max_bytes=100, timeout_s=1.0) == {}
