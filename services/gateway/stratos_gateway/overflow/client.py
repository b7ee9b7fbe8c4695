"""Calls the external endpoint; one connection pool for all requests of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from stratos.common.clock import Clock
from stratos.common.errors import WorkerLost
from stratos_gateway.http.tls import outside_context
from stratos_gateway.overflow.call import ExternalCall
from stratos_gateway.overflow.events import BadStream, read_events
from stratos_gateway.overflow.output import ExternalOutput
from stratos_gateway.overflow.request import ExternalRequest
from stratos_gateway.overflow.settings import OverflowConfig


class OverflowClient:
    """Belongs to the event loop; redirects and proxies of the environment are not followed.

    Args:
        config: where it is.
        clock: monotonic.
    """

    def __init__(self, config: OverflowConfig, clock: Clock) -> None:
        key = config.key.get_secret_value()
        self.config = config
        self._clock = clock
        self._num_open = 0
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(config.idle_timeout_s, connect=config.connect_timeout_s),
            limits=httpx.Limits(max_connections=config.max_open),
            verify=outside_context(),
            trust_env=False,
        )

    @property
    def has_room(self) -> bool:
        """Another request may go there."""
        return self._num_open < self.config.max_open

    @asynccontextmanager
    async def open(self, request: ExternalRequest, call: ExternalCall) -> AsyncIterator[ExternalOutput]:
        """Run a request there; leaving the block ends it there.

        Raises:
            WorkerLost: the endpoint cannot be reached, refuses, or does not begin in time.
        """
        body = {
            **request.body, "model": self.config.model or call.model, "max_tokens": call.max_tokens, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        self._num_open += 1
        try:
            async with self._events(request.path, body, call.within_s) as events:
                yield ExternalOutput(events, request.num_choices, call, self._clock)
        except httpx.HTTPError as error:
            raise WorkerLost(f"the external endpoint failed: {type(error).__name__}") from None
        finally:
            self._num_open -= 1

    @asynccontextmanager
    async def _events(
        self, path: str, body: dict[str, Any], within_s: float
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events, of which the first one has come."""
        request = self._http.build_request(
            "POST", self.config.url.rstrip("/") + path, content=orjson.dumps(body),
            headers={"content-type": "application/json"},
        )  # fmt: skip
        answer: httpx.Response | None = None
        try:
            async with asyncio.timeout(min(self.config.first_token_timeout_s, max(0.0, within_s))):
                answer = await self._http.send(request, stream=True)
                if answer.status_code != httpx.codes.OK:
                    raise WorkerLost(f"the external endpoint answers {answer.status_code}")
                events = read_events(answer.aiter_bytes())
                first = await anext(events, None)
        except TimeoutError:
            raise WorkerLost("the external endpoint does not begin in time") from None
        except BadStream as error:
            raise WorkerLost(f"the external endpoint cannot be understood: {error}") from None
        else:
            yield _chained(first, events)
        finally:
            if answer is not None:
                await answer.aclose()

    async def close(self) -> None:
        """End its connections."""
        await self._http.aclose()


async def _chained(first: dict[str, Any] | None, rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    if first is None:
        return
    yield first
    try:
        async for event in rest:
            yield event
    except httpx.HTTPError as error:
        raise WorkerLost(f"the external endpoint failed: {type(error).__name__}") from None
