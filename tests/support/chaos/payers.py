"""Tenants with prices and limits that send without a pause, and what each of their clients saw."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
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


def declaration() -> dict[str, Any]:
    """A plan for each tenant, as the admin API takes it."""
    common = {"priority_class": 1, "prices": PRICES, "burst_s": BURST_S}
    return {
        "plans": {f"chaos-{name}": {**common, **limits} for name, limits in LIMITS.items()},
        "tenants": {f"chaos-{name}": {"plan": f"chaos-{name}"} for name in LIMITS},
    }


@dataclass(slots=True)
class Paid:
    """One request as its client saw it."""

    request_id: str
    prompt: str
    sent: float
    max_tokens: int = 0
    status: int = 0
    first: float = 0.0
    last: float = 0.0
    """When its last but one piece of text came: it was open when that was sent."""
    latest: float = 0.0
    """When the last piece came."""
    ended: float = 0.0
    """When its usage came."""
    text: str = ""
    usage: dict[str, Any] | None = None
    error: str = ""

    @property
    def is_complete(self) -> bool:
        return self.usage is not None and not self.error

    @property
    def num_claimed(self) -> int:
        """Tokens that it took of a limit; 0 where they are not known, as its gateway took it along."""
        return self.usage["prompt_tokens"] + self.max_tokens if self.usage else 0

    @property
    def num_given_back(self) -> int:
        """Tokens that it did not use."""
        return self.max_tokens - self.usage["completion_tokens"] if self.usage else 0


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

    async def run(self, disturb: Callable[[asyncio.Event], Awaitable[None]], num_each: int) -> None:
        """Send until each tenant got ``num_each`` answers, ``disturb``, and go on until it got as many again."""
        is_over, limits = asyncio.Event(), httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
            clients = [
                asyncio.create_task(self._send_on(client, tenant, number, is_over))
                for tenant, count in NUM_CLIENTS.items()
                for number in range(count)
            ]
            try:
                await self._answers(num_each)
                await disturb(asyncio.Event())
                await self._answers(num_each)
            finally:
                is_over.set()
                await asyncio.gather(*clients)

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
            paid = Paid(name, prompt, time.monotonic(), fields["max_tokens"])
            self.paid[tenant].append(paid)
            pause_s = await self._send(client, tenant, paid, fields)
            if pause_s:
                await asyncio.sleep(min(pause_s, MAX_PAUSE_S))

    async def _send(self, client: httpx.AsyncClient, tenant: str, paid: Paid, fields: dict[str, Any]) -> float:
        headers = {"authorization": f"Bearer {self.keys[tenant]}", "x-request-id": paid.request_id}
        body = {"model": "base", "prompt": paid.prompt, "temperature": 0, "ignore_eos": True,
                "stream": True, "stream_options": {"include_usage": True}, **fields}  # fmt: skip
        try:
            async with client.stream("POST", f"{self.base_url}/completions", json=body, headers=headers) as answer:
                paid.status = answer.status_code
                if paid.status != httpx.codes.OK:
                    await answer.aread()
                    return float(answer.headers.get("retry-after", MAX_PAUSE_S))
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        self._hear(paid, json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            paid.error = f"{type(error).__name__}: {error}"
        if paid.usage is None and not paid.error:
            paid.error = "the stream ended without usage"
        return 0.0

    def _hear(self, paid: Paid, event: dict[str, Any]) -> None:
        paid.first = paid.first or time.monotonic()
        if "error" in event:
            paid.error = json.dumps(event["error"])
        if usage := event.get("usage"):
            paid.usage, paid.ended = usage, time.monotonic()
        if text := "".join(choice["text"] for choice in event.get("choices", ())):
            paid.text += text
            paid.last, paid.latest = paid.latest, time.monotonic()


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
    open_ones = [request for request in taken if request.last > request.first]
    changes = sorted((at, change) for request in open_ones for at, change in ((request.first, 1), (request.last, -1)))
    most = max(itertools.accumulate(change for _, change in changes), default=0)
    return [f"{tenant}: {most} open at once of {limit}"] if most > limit else []
