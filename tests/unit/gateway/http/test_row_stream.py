"""A list on the wire: errors before its first part have a status, slow clients end it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from stratos.common.errors import DependencyDown
from stratos_gateway.http.row_stream import PART_ROWS, PartStream, Rows, encoded, encoded_sections
from stratos_gateway.http.sse import SlowClient


async def rows(num_rows: int, fails: bool = False) -> Rows:
    for number in range(num_rows):
        yield {"number": number}
    if fails:
        raise DependencyDown("gone")


async def silent() -> Any:
    await asyncio.Event().wait()


async def answered(stream: PartStream) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await stream({"type": "http"}, silent, send)
    return sent


@pytest.mark.parametrize("num_rows", [0, 1, PART_ROWS, 3 * PART_ROWS + 1])
async def test_parts_are_one_json_object(num_rows: int) -> None:
    start, *parts = await answered(PartStream(encoded(rows(num_rows)), 1.0))
    names = {name for name, _ in start["headers"]}
    assert (start["status"], b"content-type" in names, b"content-length" in names) == (200, True, False)
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    found = orjson.loads(b"".join(part["body"] for part in parts))
    assert found == {"data": [{"number": number} for number in range(num_rows)]}


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0, 2), (0, 3 * PART_ROWS, 1)])
async def test_sections_are_one_json_object_with_a_line_for_each_entry(sizes: tuple[int, ...]) -> None:
    entry = {"text": "a\u2028b\nc"}
    sections = {f"s{place}": [(f"n{number}", entry) for number in range(size)] for place, size in enumerate(sizes)}
    text = b"".join([part async for part in encoded_sections(sections)])
    assert orjson.loads(text) == {name: dict(entries) for name, entries in sections.items()}
    entries = [line for line in text.split(b"\n") if line.startswith(b'"')]
    assert [orjson.loads(b"{" + line.rstrip(b",") + b"}") for line in entries] == [
        {name: entry} for found in sections.values() for name, entry in found
    ]


async def test_an_error_before_the_first_part_is_raised_before_anything_is_sent() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(DependencyDown):
        await PartStream(encoded(rows(3, fails=True)), 1.0)({"type": "http"}, silent, send)
    assert sent == []


async def test_a_client_that_does_not_read_ends_it() -> None:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with pytest.raises(SlowClient):
        await PartStream(encoded(rows(3)), 0.01)({"type": "http"}, silent, send)
