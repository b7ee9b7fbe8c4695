"""One request to an OpenAI-compatible server: sends it and notes when each event of its stream came."""

from __future__ import annotations

import contextlib
import errno
import json
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from stratos.cli.load.client.sse import StreamReader
from stratos.cli.load.client.target import Target
from stratos.cli.load.measured import TimedAnswer
from stratos.cli.load.workload.prompts import text_of, token_ids
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn

SHED_REASON = "x-stratos-shed-reason"
_NO_SOCKETS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL}
_TRUNCATED = 120


class HttpSender:
    """Connections to one server; belongs to the event loop.

    Args:
        target: the server.
        now: seconds of the run's clock.
    """

    def __init__(self, target: Target, now: Callable[[], float]) -> None:
        self._target = target
        self._now = now
        self._url = f"{target.base_url}/{'chat/completions' if target.is_chat else 'completions'}"
        # Without a bound of connections: a client that waits for one of its own would be the bottleneck.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # Reading the system's CAs takes longer than many a run, and without TLS none is asked.
        trusted = True if target.base_url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.AsyncClient(timeout=target.timeout_s, limits=limits, verify=trusted)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

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
        headers = {"authorization": f"Bearer {session.sender.key}", "content-type": "application/json"}
        answer = TimedAnswer(sent_s=self._now())
        try:
            async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                if response.status_code == httpx.codes.OK:
                    await self._read(response, answer)
                else:
                    answer.failure = _refusal(response, await response.aread())
        except (httpx.HTTPError, OSError) as error:
            answer.failure = _broken(error)
            answer.is_client_fault = _is_out_of_sockets(error)
        return answer

    async def _read(self, response: httpx.Response, answer: TimedAnswer) -> None:
        reader = StreamReader()
        async for data in response.aiter_bytes():
            if num_events := reader.feed(data):
                answer.token_times_s.extend([self._now()] * num_events)
        answer.num_prompt_tokens, answer.num_output_tokens = reader.num_prompt_tokens, reader.num_output_tokens
        if reader.error:
            answer.failure = f"stream: {reader.error[:_TRUNCATED]}"
        elif not answer.token_times_s:
            answer.failure = "stream: no output"
        elif not reader.is_ended:
            answer.failure = "stream: broke off"


def _refusal(response: httpx.Response, content: bytes) -> str:
    """Status and reason: that of the header, else the error's code or type."""
    reason = response.headers.get(SHED_REASON, "")
    if not reason:
        with contextlib.suppress(ValueError, AttributeError):
            error = json.loads(content).get("error", {})
            reason = error.get("code") or error.get("type") or error.get("message", "")
    return f"{response.status_code} {str(reason)[:_TRUNCATED]}".rstrip()


def _broken(error: BaseException) -> str:
    """Kind alone: a message may name ports and times, and failures are counted by it."""
    return f"connection: {type(error).__name__}"


def _is_out_of_sockets(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SOCKETS:
            return True
        error = error.__cause__ or error.__context__
    return False
