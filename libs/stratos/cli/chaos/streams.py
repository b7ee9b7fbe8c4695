"""The mixed streams under which faults come: what is asked, what came, and where two runs differ.

Where a gateway is struck, each stream asks for a record, and its client comes back for the rest after it lost its
connection; an answer that has no record is asked for again from its start.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

NUM_STREAMS, NUM_TOKENS = 24, 160
NUM_BEFORE = 10
"""Tokens of a stream before the fault comes."""
NUM_JUST_BEFORE = 4
"""Streams whose prompts may be under way when it comes."""
TIMEOUT_S = 300.0
POLL_S, RETURN_PAUSE_S = 0.01, 0.1
MOVED = "stream_moved"
"""Code of the error by which a gateway says that another connection has taken a stream over."""
LEAVING = (MOVED, "draining")
"""Codes in a stream whose rest another gateway has."""
COMING_BACK = (*LEAVING, "dependency_unavailable")
"""Codes by which a gateway says that it cannot go on with a stream of another one yet; any other refusal is final."""
PROMPT = "def read_lines(path):\n    with open(path, encoding='utf-8') as file:\n        return list(file)\n\n\n" * 4
"""Long enough to be computed at a prefill worker."""
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 60}
TOOL = {
    "type": "function",
    "function": {
        "name": "plot",
        "parameters": {"type": "object", "properties": {"points": NUMBERS}, "required": ["points"]},
    },
}
CHARACTERS = "(日本語|ελληνικά|🙂🚀|ü){90,}"
"""Several tokens make a character, so streams move within one."""
FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seed": {"temperature": 0.9, "top_p": 0.95, "seed": 7},
    "n=2": {"n": 2, "temperature": 0.8, "seed": 11},
    "logprobs": {"logprobs": 3, "temperature": 0.7, "seed": 13},
    "penalties": {"frequency_penalty": 1.2, "presence_penalty": 0.5, "temperature": 0.6, "seed": 17},
    "bias": {"logit_bias": {"300": 4, "301": -50, "302": 2}, "temperature": 0},
    "stop": {"stop": ["return None", "####"], "temperature": 0.5, "seed": 19},
    "json": {"structured_outputs": {"json": NUMBERS}, "temperature": 0.4, "seed": 23, "ignore_eos": False},
    "tools": {"tools": [TOOL], "tool_choice": "required", "temperature": 0.7, "seed": 31, "ignore_eos": False},
    "multi-byte": {"structured_outputs": {"regex": CHARACTERS}, "temperature": 0.9, "seed": 29, "ignore_eos": False},
}


Disturb = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Disturbs the platform; sets the event once that took effect."""


@dataclass(slots=True)
class StreamResult:
    """One stream as its client saw it."""

    name: str
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    """Prompt tokens, completion tokens."""
    error: str = ""
    times: list[float] = field(default_factory=list)
    """When its events came."""
    record: str = ""
    """Name of its record, by which any gateway can go on with it."""
    last_id: str = ""
    """Id of the last event, where there is a record."""
    num_returns: int = 0
    """How often its client came back."""
    num_resumed: int = 0
    """How often it then got the rest of its record."""
    num_begun_anew: int = 0
    """How often it began again, so that it is computed and billed again."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices, so far."""
        return sum(map(len, self.token_ids.values()))

    @property
    def is_open(self) -> bool:
        """It has begun and goes on."""
        return bool(self.times) and self.usage is None and not self.error

    @property
    def longest_gap_s(self) -> float:
        """Longest pause between two events."""
        return max((later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)), default=0.0)

    def go_on_as(self, record: str) -> None:
        """Expect what this record has; an answer of another one, or of none, begins again."""
        if record and record == self.record:
            self.num_resumed += bool(self.last_id)
        else:
            self.num_begun_anew += bool(self.times)
            self.texts, self.token_ids, self.logprobs, self.finish_reasons = {}, {}, {}, {}
            self.usage, self.error, self.last_id = None, "", ""
        self.record = record

    def take(self, event: dict[str, Any]) -> None:
        """One event of the stream."""
        self.times.append(time.monotonic())
        if "error" in event:
            self.error = json.dumps(event["error"])
        if usage := event.get("usage"):
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in event.get("choices", ()):
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + text_of(choice)
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or ())
            if choice.get("logprobs"):
                self.logprobs.setdefault(index, []).extend(choice["logprobs"]["token_logprobs"])
            if choice.get("finish_reason"):
                self.finish_reasons[index] = choice["finish_reason"]


def text_of(choice: dict[str, Any]) -> str:
    """Text of a completion's choice, or content and calls of a chat's."""
    if "text" in choice:
        return str(choice["text"])
    delta = choice.get("delta", {})
    calls = (call.get("function", {}) for call in delta.get("tool_calls") or ())
    return (delta.get("content") or "") + "".join(call.get("name", "") + call.get("arguments", "") for call in calls)


def bodies(
    models: Sequence[str],
    num_streams: int = NUM_STREAMS,
    without: Collection[str] = (),
    num_tokens: int = NUM_TOKENS,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and body of each stream: every feature but some with several models, every model with several features."""
    features = [(name, fields) for name, fields in FEATURES.items() if name not in without]
    for index in range(num_streams):
        feature, fields = features[index % len(features)]
        model = models[(index + index // len(features)) % len(models)]
        common = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        length = {"max_tokens": num_tokens, "ignore_eos": True}
        prompt = f"# {index}\n{PROMPT}def "
        asked = {"messages": [{"role": "user", "content": prompt}]} if "tools" in fields else {"prompt": prompt}
        yield f"{index}-{feature}-{model}", {"model": model, **asked, **common, **length, **fields}


class StreamRun:
    """All streams at once.

    Args:
        base_url: of the platform, with /v1.
        api_key: of a tenant.
        name: begins the request ids, by which logs are searched.
        models: that are asked, adapters too.
        are_recorded: clients come back where they lose their gateway.
        patience_s: time without a byte of a stream that has begun, after which its client comes back.
        without: features that are left out.
        num_streams: how many.
        num_tokens: most tokens of each choice.
        transport: by which they are sent, if not over the network.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        name: str,
        models: Sequence[str],
        *,
        are_recorded: bool = False,
        patience_s: float = TIMEOUT_S,
        without: Collection[str] = (),
        num_streams: int = NUM_STREAMS,
        num_tokens: int = NUM_TOKENS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name, self._url, self._are_recorded, self._transport = name, base_url, are_recorded, transport
        self._patience_s = patience_s
        self._asks = list(bodies(models, num_streams, without, num_tokens))
        self._headers = {"authorization": f"Bearer {api_key}"}
        self.results = {name: StreamResult(name) for name, _ in self._asks}

    async def run(self, disturb: Disturb) -> None:
        """Run all streams to their end: half, a few just before ``disturb``, the others as soon as it took effect.

        Raises:
            TimeoutError: some take too long.
        """
        tasks: set[asyncio.Task[Any]] = set()
        async with _client(self._transport) as client:
            try:
                await self._run(client, disturb, tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, client: httpx.AsyncClient, disturb: Disturb, tasks: set[asyncio.Task[Any]]) -> None:
        def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            tasks.add(task := asyncio.create_task(work))
            return task

        half = len(self._asks) // 2
        first, second = self._asks[:half], self._asks[half:]
        streams = [begin(self._stream(client, name, body)) for name, body in first]
        async with asyncio.timeout(TIMEOUT_S):
            for name, _ in first:
                await self._begun(name)
        streams += [begin(self._stream(client, name, body)) for name, body in second[:NUM_JUST_BEFORE]]
        in_effect = asyncio.Event()
        disturbance, effect = begin(disturb(in_effect)), begin(in_effect.wait())
        await asyncio.wait({disturbance, effect}, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
        streams += [begin(self._stream(client, name, body)) for name, body in second[NUM_JUST_BEFORE:]]
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*streams)
        async with asyncio.timeout(TIMEOUT_S):
            await disturbance

    async def _begun(self, name: str) -> None:
        while True:
            if self._has_begun(name):
                return
            await asyncio.sleep(POLL_S)

    def _has_begun(self, name: str) -> bool:
        result = self.results[name]
        return result.num_tokens >= NUM_BEFORE or (not result.is_open and bool(result.times or result.error))

    def num_open(self) -> int:
        """Streams that go on now."""
        return sum(result.is_open for result in self.results.values())

    async def _stream(self, client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> None:
        result = self.results[name]
        headers = {**self._headers, "x-request-id": f"{self.name}-{name.split('-')[0]}"}
        if self._are_recorded:
            headers |= {"idempotency-key": headers["x-request-id"], "connection": "close"}
        while True:
            problem = await self._follow(client, result, body, headers)
            if not problem:
                return
            if not self._are_recorded:
                result.error = result.error or problem
                return
            result.num_returns += 1
            headers.pop("last-event-id", None)
            headers |= {"last-event-id": result.last_id} if result.last_id else {}
            await asyncio.sleep(RETURN_PAUSE_S)

    async def _follow(
        self, client: httpx.AsyncClient, result: StreamResult, body: dict[str, Any], headers: dict[str, str]
    ) -> str:
        """Read until the stream has ended, or failed for good; returns why it ended before."""
        event_id = ""
        try:
            async with client.stream("POST", _url_of(self._url, body), json=body, headers=headers) as answer:
                if answer.status_code != httpx.codes.OK:
                    content = await answer.aread()
                    text = f"{answer.status_code}: {content.decode()}"
                    if _code_of(content) in COMING_BACK:
                        return text
                    result.error = text
                    return ""
                result.go_on_as(answer.headers.get("x-stratos-stream", "none").removeprefix("none"))
                lines = answer.aiter_lines()
                while (line := await self._next_line(lines, result)) is not None:
                    if line.startswith("id: "):
                        event_id = line.removeprefix("id: ")
                    elif line.startswith("data: {"):
                        event = json.loads(line.removeprefix("data: "))
                        if self._are_recorded and (code := event.get("error", {}).get("code")) in LEAVING:
                            return str(code)
                        result.take(event)
                        result.last_id = event_id if result.record else ""
        except (httpx.HTTPError, TimeoutError) as error:
            return "" if result.usage else f"{type(error).__name__}: {error}"
        return "" if result.usage or result.error else "the stream ended without usage"

    async def _next_line(self, lines: AsyncIterator[str], result: StreamResult) -> str | None:
        async with asyncio.timeout(self._patience_s if result.times else TIMEOUT_S):
            return await anext(lines, None)


def _url_of(base_url: str, body: dict[str, Any]) -> str:
    return f"{base_url}/{'chat/' if 'messages' in body else ''}completions"


def _client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False, transport=transport)


def _code_of(content: bytes) -> str:
    """Code of the error that is the body of an answer, or ""."""
    try:
        return str(json.loads(content)["error"]["code"])
    except (ValueError, TypeError, LookupError):
        return ""


async def refused_features(
    base_url: str, api_key: str, model: str, transport: httpx.AsyncBaseTransport | None = None
) -> tuple[str, ...]:
    """Features that a model refuses with 400: one without a chat template takes no messages."""
    refused = []
    async with _client(transport) as client:
        for feature, (_, body) in zip(FEATURES, bodies([model], len(FEATURES)), strict=True):
            short = {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}
            answer = await client.post(
                _url_of(base_url, body), json=short | {"max_tokens": 1}, headers={"authorization": f"Bearer {api_key}"}
            )
            if answer.status_code == httpx.codes.BAD_REQUEST:
                refused.append(feature)
    return tuple(refused)


def lost_records(results: Iterable[StreamResult]) -> list[str]:
    """Streams that began again where they should have gone on, in words; log probabilities have no record."""
    return [
        f"{one.name}: began again {one.num_begun_anew} times, so it was computed and billed again"
        for one in results
        if one.num_begun_anew and one.name.split("-")[1] != "logprobs"
    ]


def differences(expected: StreamResult, got: StreamResult) -> list[str]:
    """Parts of a stream that are not as in the undisturbed run, in words."""
    if got.error:
        return [f"{got.name}: {got.error}"]
    fields = ("texts", "token_ids", "logprobs", "finish_reasons", "usage")
    return [f"{got.name}: other {name}" for name in fields if getattr(expected, name) != getattr(got, name)]
