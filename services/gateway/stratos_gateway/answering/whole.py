"""Answers that are sent at once, of every route: behind the gate of a process that stood still, as streams are; and
what takes long to be made, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from starlette.responses import Response

from stratos.common.errors import StratosError
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.body import OrjsonResponse
from stratos_gateway.openai.chunks import ChoiceChunk, Usage
from stratos_gateway.openai.rendering import Renderer

T = TypeVar("T")
_INLINE_CHARS = 16 * 1024
"""Text of an answer, all choices together, that is rendered on the event loop."""
_PLACE_CHARS = 256
"""Characters of a text that take about as long as the log probabilities at one place."""


async def send_whole(request: ClientRequest[Any], response: Response, *, is_billed: bool = False) -> None:
    """Write an answer that is one message; one that is billed already is sent whatever ended its request.

    Raises:
        StratosError: what ended the request while it waited: others have its tenant's slots.
    """
    try:
        await request.until_open()
    except StratosError:
        if not is_billed:
            raise
    request.whole = bytes(response.body)
    await response(request.http.scope, request.http.receive, request.send)


async def rendered(renderer: Renderer, chunks: Sequence[ChoiceChunk], usage: Usage) -> OrjsonResponse:
    """A whole answer, in a thread where that takes long: log probabilities take some 2 us for each likely token."""
    return await _made(renderer, chunks, lambda: OrjsonResponse(renderer.body(chunks, usage)))


async def first_part(renderer: Renderer, chunks: Sequence[ChoiceChunk]) -> bytes:
    """The same of a stream's first part, which may have all log probabilities of its prompts."""
    return await _made(renderer, chunks, lambda: renderer.stream_part(chunks))


async def _made(renderer: Renderer, chunks: Sequence[ChoiceChunk], make: Callable[[], T]) -> T:
    if is_short(chunks):
        return make()
    release, work = renderer.hold(), asyncio.create_task(asyncio.to_thread(make))
    work.add_done_callback(lambda _: release())  # the thread goes on where the request ends before it
    return await asyncio.shield(work)


def is_short(chunks: Sequence[ChoiceChunk]) -> bool:
    """Chunks are rendered in a moment."""
    size = 0
    for chunk in chunks:
        size += len(chunk.text) + _PLACE_CHARS * (len(chunk.entries) + len(chunk.prompt_logprobs))
    return size <= _INLINE_CHARS
