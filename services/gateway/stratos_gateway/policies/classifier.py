"""A classifier behind OpenAI's moderation API: a text -> the highest score of any category."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Protocol

import httpx
import orjson

from stratos_gateway.http.tls import outside_context
from stratos_gateway.policies.settings import ContentPoliciesConfig

_MAX_ANSWER_BYTES = 1024 * 1024


class NoVerdict(Exception):
    """The classifier does not answer, or not in its form; the message never holds the text."""


class Classifier(Protocol):
    """Says how bad a text is."""

    async def score(self, text: str) -> float:
        """From 0 to 1.

        Raises:
            NoVerdict: there is no answer to rely on.
        """
        ...


class NoClassifier(Classifier):
    """There is none, or none that may be asked.

    Args:
        reason: what stands against it.
    """

    def __init__(self, reason: str = "this gateway has no classifier") -> None:
        self._reason = reason

    async def score(self, text: str) -> float:
        """Never one."""
        raise NoVerdict(self._reason)


class HttpClassifier(Classifier):
    """Calls one endpoint; redirects and proxies of the environment are not followed.

    Args:
        config: where it is.
        transport: of tests.
    """

    def __init__(self, config: ContentPoliciesConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        key = config.classifier_key.get_secret_value()
        self._config = config
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=config.classifier_timeout_s,
            limits=httpx.Limits(max_connections=config.classifier_max_calls),
            verify=outside_context(),
            trust_env=False,
            transport=transport,
        )

    async def score(self, text: str) -> float:
        """The highest score of any category."""
        body: dict[str, Any] = {"input": text}
        if self._config.classifier_model:
            body["model"] = self._config.classifier_model
        try:
            async with asyncio.timeout(self._config.classifier_timeout_s):
                return await self._ask(orjson.dumps(body))
        except TimeoutError:
            raise NoVerdict("the classifier does not answer in time") from None
        except httpx.HTTPError as error:
            raise NoVerdict(f"the classifier cannot be asked: {type(error).__name__}") from None

    async def _ask(self, body: bytes) -> float:
        headers, content = {"content-type": "application/json"}, b""
        async with self._http.stream("POST", self._config.classifier_url, content=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                raise NoVerdict(f"the classifier answers {answer.status_code}")
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > _MAX_ANSWER_BYTES:
                    raise NoVerdict("the classifier's answer is too large")
        return _highest(content)

    async def close(self) -> None:
        """End its connections."""
        await self._http.aclose()


def _highest(content: bytes) -> float:
    try:
        results = orjson.loads(content)["results"]
        scores = [score for result in results for score in result["category_scores"].values()]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NoVerdict("the classifier's answer is not of its form") from None
    if not scores or not all(type(s) in (int, float) and math.isfinite(s) and 0 <= s <= 1 for s in scores):
        raise NoVerdict("the classifier's answer has no scores from 0 to 1")
    return float(max(scores))
