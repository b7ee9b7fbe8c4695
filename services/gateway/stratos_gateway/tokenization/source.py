"""Answers that were ready before any step: one JSON object, no usage, no entry in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import orjson
from starlette.responses import Response

from stratos_gateway.answering.output import Output
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.answering.whole import send_whole
from stratos_gateway.openai.chunks import Usage
from stratos_gateway.tokenization.preparation import PreparedAnswer

_INLINE_VALUES = 4096
"""Entries of a list that are written on the event loop."""


class ReadyOutput(Output):
    """The answer of a request that no worker computes.

    Args:
        answer: ready for JSON.
    """

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer

    @property
    def usage(self) -> Usage:
        """No token: none was computed."""
        return Usage(0)

    def sections(self) -> Mapping[str, Any]:
        """This gateway answered."""
        return {"source": "gateway"}


class ReadySource:
    """Hands on what preparation has made."""

    @asynccontextmanager
    async def open(self, request: ClientRequest[PreparedAnswer]) -> AsyncIterator[ReadyOutput]:
        """The answer."""
        yield ReadyOutput(request.prepared.answer)


class ReadySender:
    """Writes one JSON object."""

    def waiting(self, request: ClientRequest[PreparedAnswer]) -> AbstractAsyncContextManager[None]:
        """The client hears nothing before."""
        return nullcontext()

    async def send(self, request: ClientRequest[PreparedAnswer], output: ReadyOutput) -> None:
        """Large answers are encoded in a thread, beside the streams of others."""
        answer = output.answer
        is_small = all(len(value) <= _INLINE_VALUES for value in answer.values() if isinstance(value, list | str))
        content = orjson.dumps(answer) if is_small else await asyncio.to_thread(orjson.dumps, answer)
        await send_whole(request, Response(content, media_type="application/json"))
