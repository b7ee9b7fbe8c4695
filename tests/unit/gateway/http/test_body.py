"""Bodies that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from stratos.common.errors import RequestTooLarge
from stratos_gateway.http.body import read_json


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
