"""Tenants with prices and limits that send without a pause, and what each of their clients saw.

Every second client sends an idempotency key, and comes back for the rest where it lost its gateway.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.waiting import eventually

PRICES = {"default": {"prompt": 1_000_000, "cached": 250_000, "output": 3_000_000}}
BURST_S = 5
NUM_CLIENTS = {"free": 8, "by-requests": 14, "by-tokens": 14, "by-sequences": 14, "by-all": 14}
"""Clients of each tenant: all of them send at once."""
LIMITS: dict[str, dict[str, int]] = {
    "free": {},
    "by-requests": {"requests_per_min": 240},
    "by-tokens": {"tokens_per_min": 12_000},
    "by-sequences": {"max_sequences": 5},
    "by-all": {"requests_per_min": 240, "tokens_per_min": 3000, "max_sequences": 5},
}
ENDS_EARLY = {"by-all": {"max_tokens": 40, "stop": ["("]}}
"""Fields of requests that claim more tokens than they use, which comes back at their end."""
SETTLED_S = 1.0
"""Most time from the usage that a client sees to the moment at which its request gives back."""
MAX_PAUSE_S = 0.5
"""Clients come back sooner than they are told to."""
TIMEOUT_S = 300.0
PATIENCE_S = 2.0
"""Time without a byte of an answer that has begun, after which a client with a key comes back."""
RETURN_PAUSE_S = 0.1
TICK_S, NUM_TICKS = 0.01, 6
"""What is read now was sent after the sixth tick before: a piece takes fewer turns of the event loop than that."""
GIVE_UP_S = 120.0
"""Longest time of an answer from its first try, after which its client comes back no more."""
AGAIN = ("stream_moved", "draining", "concurrency_limit")
"""Codes in a stream whose rest another gateway has, or this one later."""
REFUSED = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
"""Status of one that may ask again."""


def declaration() -> dict[str, Any]:
    """A plan for each tenant, as the admin API takes it."""
    common = {"priority_class": 1, "prices": PRICES, "burst_s": BURST_S}
    return {
        "plans": {f"chaos-{name}": {**common, **limits} for name, limits in LIMITS.items()},
        "tenants": {f"chaos-{name}": {"plan": f"chaos-{name}"} for name in LIMITS},
    }


@dataclass(slots=True)
class Connection:
    """What came by one connection of a request."""

    first: float = 0.0
    last: float = 0.0
    """When its last but one piece of text came, or sooner, as its client may have read it late: it was open when that
    was sent."""
    latest: float = 0.0
    """The same of the last piece."""
    stream: str = "none"
    """Name of the record that it was told; "none" of an answer that has none, and "" where it was told nothing."""


@dataclass(slots=True)
class Paid:
    """One request as its client saw it."""

    request_id: str
    prompt: str
    sent: float
    max_tokens: int = 0
    has_key: bool = False
    """Its client comes back for the rest."""
    repeats: bool = False
    """By the same request alone, as an SDK does; else with the id of its last event."""
    status: int = 0
    connections: list[Connection] = field(default_factory=list)
    ended: float = 0.0
    """When its usage came."""
    text: str = ""
    last_id: str = ""
    usage: dict[str, Any] | None = None
    error: str = ""

    @property
    def first(self) -> float:
        """When its first event came, or 0."""
        return next((connection.first for connection in self.connections if connection.first), 0.0)

    @property
    def is_complete(self) -> bool:
        return self.usage is not None and not self.error

    @property
    def num_returns(self) -> int:
        return max(0, len(self.connections) - 1)

    @property
    def is_recorded(self) -> bool:
        """Each of its connections had a record."""
        return self.has_key and all(connection.stream not in ("", "none") for connection in self.connections)

    @property
    def num_claimed(self) -> int:
        """Tokens that it took of a limit; 0 where they are not known, as its gateway took it along."""
        return self.usage["prompt_tokens"] + self.max_tokens if self.usage and not self.num_returns else 0

    @property
    def num_given_back(self) -> int:
        """Tokens that it did not use."""
        return self.max_tokens - self.usage["completion_tokens"] if self.usage and not self.num_returns else 0


@dataclass
class Payers:
    """All clients.

    Args:
        base_url: of the platform, with /v1.
        keys: by tenant, as in ``LIMITS``.
        name: begins the request ids.
    """

    base_url: str
    keys: dict[str, str]
    name: str
    paid: dict[str, list[Paid]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _ticks: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TICKS))

    async def run(self, disturb: Callable[[asyncio.Event], Awaitable[None]], num_each: int) -> None:
        """Send until each tenant got ``num_each`` answers, ``disturb``, and go on until it got as many again."""
        is_over, limits = asyncio.Event(), httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
            clients = [
                asyncio.create_task(self._send_on(client, tenant, number, is_over))
                for tenant, count in NUM_CLIENTS.items()
                for number in range(count)
            ]
            clients.append(asyncio.create_task(self._tick(is_over)))
            try:
                await self._answers(num_each)
                await disturb(asyncio.Event())
                await self._answers(num_each)
            finally:
                is_over.set()
                await asyncio.gather(*clients)

    async def _tick(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            self._ticks.append(time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await is_over.wait()

    def _num_complete(self, tenant: str) -> int:
        return sum(paid.is_complete for paid in self.paid[tenant])

    async def _answers(self, num: int) -> None:
        """Wait until each tenant got so many more."""
        wanted = {tenant: self._num_complete(tenant) + num for tenant in LIMITS}

        def is_there() -> bool:
            return all(self._num_complete(tenant) >= count for tenant, count in wanted.items())

        await eventually(is_there, "answers for every tenant", timeout_s=TIMEOUT_S, poll_s=0.05)

    async def _send_on(self, client: httpx.AsyncClient, tenant: str, number: int, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            fields = {"max_tokens": 12 + number % 7, **ENDS_EARLY.get(tenant, {})}
            name, prompt = f"{self.name}-{next(self._numbers)}", f"# {number % 4}\ndef "
            paid = Paid(name, prompt, time.monotonic(), fields["max_tokens"], number % 2 == 1, number % 4 == 3)
            self.paid[tenant].append(paid)
            pause_s = await self._send(client, tenant, paid, fields)
            while pause_s is None:
                await asyncio.sleep(RETURN_PAUSE_S)
                pause_s = await self._send(client, tenant, paid, fields)
            if pause_s:
                await asyncio.sleep(min(pause_s, MAX_PAUSE_S))

    async def _send(self, client: httpx.AsyncClient, tenant: str, paid: Paid, fields: dict[str, Any]) -> float | None:
        """Ask, also for the rest of an answer; returns the pause to the next request, ``None`` to come back first."""
        headers = {"authorization": f"Bearer {self.keys[tenant]}", "x-request-id": paid.request_id}
        headers |= {"idempotency-key": paid.request_id} if paid.has_key else {}
        headers |= {"last-event-id": paid.last_id} if paid.last_id and not paid.repeats else {}
        body = {"model": "base", "prompt": paid.prompt, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, **fields}  # fmt: skip
        paid.error = ""
        paid.connections.append(connection := Connection(stream=""))
        try:
            async with client.stream("POST", f"{self.base_url}/completions", json=body, headers=headers) as answer:
                if answer.status_code != httpx.codes.OK:
                    return await self._refused(paid, answer)
                paid.status, connection.stream = answer.status_code, answer.headers.get("x-stratos-stream", "none")
                if "last-event-id" not in headers:
                    paid.text, paid.last_id = "", ""
                await self._read(paid, connection, answer)
        except (httpx.HTTPError, TimeoutError) as error:
            paid.error = paid.error or f"{type(error).__name__}: {error}"
            return _or_back(paid, 0.0)
        if paid.usage is None and not paid.error:
            paid.error = "the stream ended without usage"
        return 0.0 if paid.is_complete or not any(code in paid.error for code in AGAIN) else _or_back(paid, 0.0)

    async def _refused(self, paid: Paid, answer: httpx.Response) -> float | None:
        """Of a request that had begun it is no answer."""
        content = await answer.aread()
        if not paid.num_returns:
            paid.status = answer.status_code
            return float(answer.headers.get("retry-after", MAX_PAUSE_S))
        paid.connections.pop()
        paid.error = f"{answer.status_code}: {content.decode()}"
        return _or_back(paid, 0.0) if answer.status_code in REFUSED else 0.0

    async def _read(self, paid: Paid, connection: Connection, answer: httpx.Response) -> None:
        event_id, lines = "", answer.aiter_lines()
        while True:
            async with asyncio.timeout(PATIENCE_S if paid.has_key and connection.first else TIMEOUT_S):
                if (line := await anext(lines, None)) is None:
                    return
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: {"):
                self._hear(paid, connection, json.loads(line.removeprefix("data: ")))
                paid.last_id = event_id if connection.stream != "none" else ""

    def _hear(self, paid: Paid, connection: Connection, event: dict[str, Any]) -> None:
        connection.first = connection.first or time.monotonic()
        if "error" in event:
            paid.error = json.dumps(event["error"])
        if usage := event.get("usage"):
            paid.usage, paid.ended = usage, time.monotonic()
        if text := "".join(choice["text"] for choice in event.get("choices", ())):
            paid.text += text
            connection.last, connection.latest = connection.latest, self._ticks[0]


def _or_back(paid: Paid, pause_s: float) -> float | None:
    """A pause, or ``None`` where its client comes back."""
    return None if paid.has_key and time.monotonic() - paid.sent < GIVE_UP_S else pause_s


def beyond_limits(paid: dict[str, list[Paid]]) -> list[str]:
    """Where more was taken than a limit allows, in words.

    Of a request it is known that it took its part between sending and its first event, so a window counts those that
    lie in it whole.  What came back within the window may have been taken by others: it counts for the limit.
    """
    problems = []
    for tenant, limits in LIMITS.items():
        taken = [request for request in paid[tenant] if request.first]
        for name, limit in limits.items():
            if name == "max_sequences":
                problems += _too_many_open(tenant, taken, limit)
            elif name == "requests_per_min":
                problems += _too_much(tenant, [Part(one.sent, one.first, 1) for one in taken], limit / 60)
            else:
                parts = [Part(o.sent, o.first, o.num_claimed, o.ended, o.num_given_back) for o in taken]
                problems += _too_much(tenant, parts, limit / 60)
    return problems


@dataclass(frozen=True, slots=True)
class Part:
    """A request's part of a limit."""

    sent: float
    first: float
    claimed: int
    ended: float = 0.0
    given_back: int = 0


def _too_much(tenant: str, parts: list[Part], rate_per_s: float) -> list[str]:
    by_end = sorted(parts, key=lambda part: part.first)
    for begin in sorted(part.sent for part in parts):
        back = deque(sorted((p.ended, p.given_back) for p in parts if p.given_back and p.ended + SETTLED_S >= begin))
        amount = 0
        for part in by_end:
            if part.sent < begin:
                continue
            amount += part.claimed
            while back and back[0][0] <= part.first + SETTLED_S:  # a client may hear of its end late
                amount -= back.popleft()[1]
            if amount > rate_per_s * (BURST_S + part.first - begin) + 1e-3:
                return [f"{tenant}: {amount} in {part.first - begin:.2f} s at {rate_per_s:.1f}/s"]
    return []


def _too_many_open(tenant: str, taken: list[Paid], limit: int) -> list[str]:
    spans = [(one.first, one.last) for paid in taken for one in paid.connections if one.last > one.first > 0]
    changes = sorted((at, change) for span in spans for at, change in zip(span, (1, -1), strict=True))
    counts = list(itertools.accumulate(change for _, change in changes))
    most = max(counts, default=0)
    if most <= limit:
        return []
    at = changes[counts.index(most)][0]
    told = ", ".join(f"{first - at:.2f} to {last - at:.2f}" for first, last in sorted(spans) if first <= at < last)
    return [f"{tenant}: {most} open at once of {limit}, in seconds: {told}"]
