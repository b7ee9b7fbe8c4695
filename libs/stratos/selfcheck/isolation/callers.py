"""Requests with one key, as a client sends them, and what can be learned from their answers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from stratos.common.error_codes import error_from_code
from stratos.common.errors import DependencyDown

TIMEOUT_S = 120.0
_SOON = {"x-stratos-deadline-ms": "2000"}
"""A request that is let through by mistake must not wait for long."""
_VARIABLE = frozenset(
    {"date", "x-request-id", "request-id", "traceparent", "content-length", "retry-after", "retry-after-ms"}
)
"""Headers that differ between any two answers."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One streamed completion."""

    ttft_s: float
    num_cached_tokens: int
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer without what differs between any two."""

    status: int
    text: str
    headers: Mapping[str, str]


class ProbeCaller:
    """One key at one API.

    Args:
        base_url: up to and without ``/v1`` or ``/admin/v1``.
        key: sent as a bearer.
    """

    def __init__(self, base_url: str, key: str) -> None:
        self.key_id = key.split("-")[1]
        self.num_completed = 0
        """Requests that were answered with tokens."""
        self.num_prompt_tokens = 0
        """Of those."""
        headers = {"authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """Models that the key may use."""
        answer = self.send("GET", "/v1/models")
        _check(answer)
        data: list[dict[str, Any]] = answer.json()["data"]
        return data

    def complete(self, model: str, prompt: str) -> Timed:
        """One token after a prompt."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, first = time.monotonic(), None
        usage: dict[str, Any] = {}
        try:
            with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.is_error:
                    answer.read()
                    _check(answer)
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise DependencyDown(f"a probe ended with {event['error'].get('code')}")
                    first = first or time.monotonic()
                    usage = event.get("usage") or usage
        except httpx.HTTPError as error:
            raise DependencyDown(f"the API at {self._http.base_url} does not answer: {error}") from error
        if first is None or not usage:
            raise DependencyDown("a probe's stream ended without tokens or usage")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        num_prompt_tokens = int(usage.get("prompt_tokens", 0))
        self.num_completed, self.num_prompt_tokens = self.num_completed + 1, self.num_prompt_tokens + num_prompt_tokens
        return Timed(first - began, int(cached), num_prompt_tokens)

    def send(self, method: str, path: str, body: Any = None, **query: str) -> httpx.Response:
        """Any request."""
        try:
            return self._http.request(method, path, json=body, params=query or None, headers=_SOON)
        except httpx.HTTPError as error:
            raise DependencyDown(f"{self._http.base_url} does not answer: {error}") from error

    def shape(self, method: str, path: str, body: Any, name: str) -> Shape:
        """How an answer looks, with a name that was asked for taken out of it."""
        answer = self.send(method, path, body)
        headers = {key: value for key, value in answer.headers.items() if key not in _VARIABLE}
        text = answer.text.replace(name, "NAME").replace(answer.headers.get("x-request-id") or name, "ID")
        return Shape(answer.status_code, text, headers)


def _check(answer: httpx.Response) -> None:
    if answer.is_error:
        try:
            error = answer.json().get("error", {})
        except ValueError:
            error = {}
        code, message = str(error.get("code", "")), str(error.get("message", ""))
        raise error_from_code(code, f"a probe is refused: {message}", http_status=answer.status_code)
