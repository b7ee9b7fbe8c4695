"""One request to an OpenAI-compatible server: sends it and notes when each event of its stream came."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

from stratos.cli.load.client.http_connection import ConnectionPool, HttpAnswer
from stratos.cli.load.client.sse import StreamReader
from stratos.cli.load.client.target import Target
from stratos.cli.load.measured import TimedAnswer
from stratos.cli.load.workload.prompts import text_of, token_ids
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn

SHED_REASON = "x-stratos-shed-reason"
OK = 200
_NO_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL}
_TRUNCATED = 120
_MAX_REFUSAL_BYTES = 1 << 16


class HttpSender:
    """Connections to one server; belongs to the event loop.

    Args:
        target: the server.
        now: seconds of the run's clock.
    """

    def __init__(self, target: Target, now: Callable[[], float]) -> None:
        self._target = target
        self._now = now
        parts = urlsplit(f"{target.base_url}/{'chat/completions' if target.is_chat else 'completions'}")
        is_tls = parts.scheme == "https"
        self._head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
        self._pool = ConnectionPool(
            parts.hostname or "",
            parts.port or (443 if is_tls else 80),
            ssl.create_default_context() if is_tls else None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close()

    def prepare(self, session: PlannedSession, turn: PlannedTurn) -> bytes:
        """The body of a request, made before it is due."""
        ids = token_ids(turn.segments, self._target.vocab_size)
        body: dict[str, Any] = {
            "model": session.model, "max_tokens": turn.num_output_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self._target.is_chat:
            body["messages"] = [{"role": "user", "content": text_of(ids)}]
        else:
            body["prompt"] = ids
        if self._target.ignores_eos:
            body["ignore_eos"] = True
        return json.dumps(body | self._target.extra, separators=(",", ":")).encode()

    async def send(self, session: PlannedSession, body: bytes) -> TimedAnswer:
        """Send a prepared request and read its answer to the end; failures are in the answer."""
        answer, reader, refusal = TimedAnswer(sent_s=self._now()), StreamReader(), bytearray()

        def on_body(head: HttpAnswer, data: bytes) -> None:
            if head.status != OK:
                refusal.extend(data[: _MAX_REFUSAL_BYTES - len(refusal)])
            elif num_events := reader.feed(data):
                answer.token_times_s.extend([self._now()] * num_events)

        try:
            async with asyncio.timeout(self._target.timeout_s):
                head = await self._pool.exchange(self._request(session, body), on_body)
        except (OSError, httptools.HttpParserError) as error:
            answer.failure = f"connection: {type(error).__name__}"  # a message may name ports, and kinds are counted
            answer.is_client_fault = isinstance(error, OSError) and error.errno in _NO_SOCKETS
        else:
            answer.failure = _fault(reader, answer) if head.status == OK else _refusal(head, bytes(refusal))
        answer.num_prompt_tokens, answer.num_output_tokens = reader.num_prompt_tokens, reader.num_output_tokens
        return answer

    def _request(self, session: PlannedSession, body: bytes) -> bytes:
        head = (
            f"{self._head}authorization: Bearer {session.sender.key}\r\ncontent-type: application/json\r\n"
            f"accept-encoding: identity\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def _fault(reader: StreamReader, answer: TimedAnswer) -> str:
    """Fault of a stream; empty for a whole one."""
    if reader.error:
        return f"stream: {reader.error[:_TRUNCATED]}"
    if not answer.token_times_s:
        return "stream: no output"
    return "" if reader.is_ended else "stream: broke off"


def _refusal(head: HttpAnswer, content: bytes) -> str:
    """Status and reason: that of the header, else the error's code or type."""
    reason = head.headers.get(SHED_REASON, "")
    if not reason:
        with contextlib.suppress(ValueError, AttributeError):
            error = json.loads(content).get("error", {})
            reason = error.get("code") or error.get("type") or error.get("message", "")
    return f"{head.status} {str(reason)[:_TRUNCATED]}".rstrip()
