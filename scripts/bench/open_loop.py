"""Clients of a benchmark that ask at times of their own, however the answers are, and how late they were."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from stratos.cli.load.client.http_connection import ConnectionPool
from stratos.cli.load.client.http_sender import SHED_REASON


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and its answer."""

    due_s: float
    """When it was to be sent; monotonic seconds, like the others."""
    sent_s: float
    ended_s: float
    status: int
    """0 where the connection broke."""
    shed_reason: str = ""

    @property
    def lag_s(self) -> float:
        """Time by which the client was late."""
        return self.sent_s - self.due_s

    @property
    def took_s(self) -> float:
        """From the request to the end of its answer."""
        return self.ended_s - self.sent_s


class OpenLoopClient:
    """Sends requests.

    Args:
        url: of the API, ends in /v1.
        key: API key.
        body: of each completion, or what draws that of the next one.
    """

    def __init__(self, url: str, key: str, body: Mapping[str, object] | Callable[[], Mapping[str, object]]) -> None:
        parts = urlsplit(url)
        self._pool = ConnectionPool(parts.hostname or "", parts.port or 80, None)
        self._head = (
            f"POST {parts.path}/completions HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {key}\r\n"
            "content-type: application/json\r\n"
        )
        self._draw = body if callable(body) else None
        self._request = b"" if callable(body) else self._packed(body)

    def _packed(self, body: Mapping[str, object]) -> bytes:
        content = json.dumps(body).encode()
        return f"{self._head}content-length: {len(content)}\r\n\r\n".encode() + content

    async def at_rate(self, rate: float, seconds: float) -> list[Answered]:
        """Requests at even times, and their answers, once the last one is there."""
        began_s, tasks = time.monotonic(), list[asyncio.Task[Answered]]()
        for number in range(int(rate * seconds)):
            due_s = began_s + number / rate
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(self.ask(due_s)))
        return list(await asyncio.gather(*tasks))

    async def in_turn(self, num_open: int, seconds: float) -> list[Answered]:
        """As many clients as ``num_open``, each of which asks again once it has its answer."""
        ends_s = time.monotonic() + seconds

        async def client() -> list[Answered]:
            answers = []
            while time.monotonic() < ends_s:
                answers.append(await self.ask(time.monotonic()))
            return answers

        return [answer for answers in await asyncio.gather(*(client() for _ in range(num_open))) for answer in answers]

    async def ask(self, due_s: float) -> Answered:
        """One request that was due at a time."""
        request = self._request if self._draw is None else self._packed(self._draw())
        sent_s = time.monotonic()
        try:
            answer = await self._pool.exchange(request, lambda answer, data: None)
        except (OSError, httptools.HttpParserError):
            return Answered(due_s, sent_s, time.monotonic(), 0)
        return Answered(due_s, sent_s, time.monotonic(), answer.status, answer.headers.get(SHED_REASON, ""))

    def close(self) -> None:
        """End the connections."""
        self._pool.close()
