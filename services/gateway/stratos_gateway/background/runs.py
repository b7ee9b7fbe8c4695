"""Root task that computes streams without a client: taken from the queue of all gateways, a tenant at a time in turn.

A stream that another gateway has lost is due again as soon as its lease has ended, so it is taken like a new one, and
goes on from its record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.types import Message

from stratos.common.background import BackgroundTasks, end_tasks, happens
from stratos.common.errors import DependencyDown, Internal, Retryable, StratosError, StreamGone, StreamMoved
from stratos_gateway.access.auth import Recall
from stratos_gateway.answering.endpoint import Endpoint
from stratos_gateway.answering.request import RESUMED
from stratos_gateway.continuations.returns import TokenReturns
from stratos_gateway.http.exchange import Exchanges
from stratos_gateway.streams.codec import StreamHead, decode_head
from stratos_gateway.streams.desk import SealedStreams
from stratos_gateway.streams.join import RUN, BackgroundRun
from stratos_gateway.streams.reading import encode_failure
from stratos_gateway.streams.routes import look
from stratos_gateway.streams.settings import StreamsConfig

_log = logging.getLogger(__name__)
MAX_OWNERS = 50
"""Gateways and attempts after which a stream fails: what loses every gateway is not given to one more."""
_MAX_QUEUES = 64
"""Tenants that are looked at in one turn."""


class BackgroundRuns:
    """Belongs to the event loop.

    Args:
        queue: of all gateways.
        recall: finds tenants.
        endpoints: routes that streams began at, by path.
        exchanges: records of requests.
        config: how many run here, and how often is looked.
        news: set when something waits.
        returns: gives back what those redeemed that failed without output; ``None`` where there are no such tokens.
        unix_s: seconds since the epoch, by the clock of the gateways that took the requests in.
    """

    def __init__(
        self,
        queue: SealedStreams,
        recall: Recall,
        endpoints: Mapping[str, Endpoint[Any]],
        exchanges: Exchanges,
        config: StreamsConfig,
        news: asyncio.Event,
        returns: TokenReturns | None = None,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._recall = recall
        self._endpoints = endpoints
        self._exchanges = exchanges
        self._config = config
        self._open: dict[asyncio.Task[None], tuple[str, str]] = {}
        """Tenant and stream of each."""
        self._ended = BackgroundTasks()
        self._news = news
        self._returns = returns
        self._unix_s = unix_s
        self._is_leaving = False

    async def run(self) -> None:
        """Root task."""
        while True:
            if not self._is_leaving:
                try:
                    await self.turn()
                except (DependencyDown, RedisError) as error:
                    _log.debug("background responses wait: %s", error)
            await happens(self._news, self._config.queue_poll_s)
            self._news.clear()

    async def leave(self) -> None:
        """Take no more, and give up those that run: other gateways go on with them."""
        self._is_leaving = True
        left = dict(self._open)
        await end_tasks(left)
        with suppress(DependencyDown, RedisError, TimeoutError):  # else they are due once their leases have ended
            async with asyncio.timeout(1.0):
                for tenant_id, stream in left.values():
                    await self._queue.delay(tenant_id, stream, 0.0)

    async def turn(self) -> None:
        """Begin streams that are due, one of each tenant in turn, while there is room; raises ``DependencyDown``."""
        tenants = await self._queue.queues(_MAX_QUEUES)
        while tenants and len(self._open) < self._config.background_running:
            tenant_id = tenants.pop(0)
            if (found := await self._queue.claim(tenant_id)) is None:
                continue
            tenants.append(tenant_id)
            task = asyncio.create_task(self._run(tenant_id, *found), name="background response")
            self._open[task] = tenant_id, found[0]
            task.add_done_callback(self._end)
            self._ended.own(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        self._news.set()

    async def _run(self, tenant_id: str, stream: str, num_owners: int) -> None:
        try:
            await self._try(tenant_id, stream, num_owners)
        except (DependencyDown, RedisError) as error:
            _log.debug("background stream %s is due again later: %s", stream, error)

    async def _try(self, tenant_id: str, stream: str, num_owners: int) -> None:
        record = await look(self._queue, tenant_id, stream)
        head = decode_head(record.head)
        if head is None:
            return
        try:
            if num_owners >= MAX_OWNERS:
                raise Internal("every gateway that computed it was lost")
            error = await self._compute(tenant_id, stream, head)
        except StratosError as refused:
            error = refused
        if isinstance(error, StratosError) and not isinstance(error, StreamGone | StreamMoved):
            await self._settle(tenant_id, stream, head, error)

    async def _compute(self, tenant_id: str, stream: str, head: StreamHead) -> BaseException | None:
        tenant, run = await self._recall(head.tenant_name, tenant_id, head.key_id), BackgroundRun()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": head.path,
            "query_string": b"",
            "headers": [(b"x-request-id", head.identity.answer_id.encode())],
            RESUMED: stream,
            RUN: run,
        }
        exchange = self._exchanges.open(scope, _send_nowhere)
        exchange.name_route("POST", head.path)
        exchange.note_tenant(tenant.name, tenant.key_id, tenant.plan.name, tenant.priority_class)
        body = {**orjson.loads(head.body), "stream": True}
        with exchange.span:
            endpoint, revision = self._endpoints[head.path], head.identity.model_digest
            await endpoint.resume(Request(scope, _never), _never, exchange.send, tenant, head.body, body, revision)
        return run.error

    async def _settle(self, tenant_id: str, stream: str, head: StreamHead, error: StratosError) -> None:
        """Let it be tried again, or end it."""
        age_s = self._unix_s() - head.identity.arrived_unix_ms / 1000
        if isinstance(error, Retryable) and age_s < self._config.background_s:
            after_s = self._config.queue_poll_s if error.after_s is None else error.after_s
            await self._queue.delay(tenant_id, stream, after_s)
            return
        _log.info("background stream %s fails: %s: %s", stream, error.code, error.message)
        has_failed = await self._queue.fail(tenant_id, stream, encode_failure(error))
        if has_failed and self._returns is not None:
            record = await look(self._queue, tenant_id, stream, first_block=0)
            if not record.blocks:
                await self._returns.give_back(tenant_id, orjson.loads(head.body), stream)


async def _send_nowhere(message: Message) -> None:
    """Drop it: clients read the record."""


async def _never() -> Message:
    """Wait for a client that leaves: there is none."""
    await asyncio.Event().wait()
    raise AssertionError
