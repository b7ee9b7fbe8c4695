"""A request that goes on with an earlier answer redeems its token, once over all gateways."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from stratos.common.continuation_errors import ContinuationExpired, ContinuationUsed
from stratos.common.errors import DependencyDown, StratosError
from stratos.common.ids import new_id
from stratos.core.requests.continuation import ContinuationState
from stratos.store.counters.redemptions import Claimed, Redeemer, Redemptions
from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.request import LINE, BatchLine, ClientRequest, PreparedGeneration
from stratos_gateway.continuations.tokens import PARAM
from stratos_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
_RELEASE_S = 1.0


class ContinuationStep(Step):
    """Shared by all requests of the process.

    Args:
        redemptions: over all gateways.
        wall_clock: seconds since the epoch.
        metrics: count them.
    """

    def __init__(self, redemptions: Redemptions, wall_clock: Callable[[], float], metrics: GatewayMetrics) -> None:
        self._redemptions = redemptions
        self._wall_clock = wall_clock
        self._metrics = metrics

    def around(self, request: ClientRequest[Any]) -> AbstractAsyncContextManager[None] | None:
        """Redeem the token of a request that has one; a request that has given its client nothing gives it back.

        One whose answer has a record redeems it again, before there is output or once it goes on with that answer here,
        and gives nothing back: earlier requests may have given their clients something, and what they have no more may
        be another client's.

        Raises:
            ContinuationUsed, ContinuationExpired, DependencyDown: the client's answer.
        """
        prepared = request.prepared
        state = prepared.continued if isinstance(prepared, PreparedGeneration) else None
        return None if state is None else self._redeemed(request, state)

    @asynccontextmanager
    async def _redeemed(self, request: ClientRequest[Any], state: ContinuationState) -> AsyncIterator[None]:
        line: BatchLine | None = request.http.scope.get(LINE)
        name = request.stream_id if line is None else line.name
        redeemer = Redeemer(name or new_id("redeem"), new_id("try"))
        request.redeem = partial(self._redeem, request, state, redeemer)
        if request.is_only_shown:
            yield
            return
        await request.redeem(request.has_output)
        try:
            yield
        finally:
            if not request.has_answered and request.followed is None:
                await self._release(request.tenant.id, state, redeemer)

    async def _redeem(
        self, request: ClientRequest[PreparedGeneration], state: ContinuationState, redeemer: Redeemer, has_output: bool
    ) -> None:
        try:
            await self._claim(request.tenant.id, state, redeemer, has_output=has_output)
        except StratosError:
            request.num_claimed_tokens = 0  # nothing is computed for it
            raise

    async def _claim(self, tenant_id: str, state: ContinuationState, redeemer: Redeemer, *, has_output: bool) -> None:
        left_s = state.expires_unix_s - self._wall_clock()
        try:
            found = await self._redemptions.claim(tenant_id, state.name, redeemer, left_s)
        except RedisError as error:
            raise DependencyDown("a continuation token cannot be redeemed now") from error
        if found is Claimed.EXPIRED and has_output:
            return  # it was redeemed in time, so long ago that the claim has gone
        self._metrics.continuations.labels("redeemed" if found is Claimed.OK else "refused").inc()
        if found is Claimed.EXPIRED:
            raise ContinuationExpired(f"the time of this {PARAM} is over", param=PARAM)
        if found is Claimed.USED:
            raise ContinuationUsed(f"this {PARAM} was redeemed already", param=PARAM)

    async def _release(self, tenant_id: str, state: ContinuationState, redeemer: Redeemer) -> None:
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._redemptions.release(tenant_id, state.name, redeemer)
        except (DependencyDown, RedisError, TimeoutError) as error:
            _log.warning("a continuation token stays redeemed, though nothing came of it: %s", error)
