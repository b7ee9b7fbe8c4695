"""The tenant's limits around a request: claimed on the way in, settled to what it took on the way out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from stratos_gateway.answering.contract import Step
from stratos_gateway.answering.draft import is_platform_failure
from stratos_gateway.answering.request import LINE, ClientRequest
from stratos_gateway.limits.headers import Headers, dated_headers, limit_headers
from stratos_gateway.limits.limiter import Cost, LimitReservation, TenantLimiter


class LimitsStep(Step):
    """Shared by all requests of the process.

    Args:
        limiter: of all tenants.
        wall_clock: seconds since the epoch, for headers.
    """

    def __init__(self, limiter: TenantLimiter, wall_clock: Callable[[], float] = time.time) -> None:
        self._limiter = limiter
        self._wall_clock = wall_clock

    def around(self, request: ClientRequest[Any]) -> _Reserved | None:
        """Hold the request's part of its tenant's limits, which the answer's headers show.

        Raises:
            RequestOverRate: more than the plan ever allows at once.
        """
        if LINE in request.http.scope:  # lines of batches wait for room, not for rates
            return None
        prepared = request.prepared
        cost = Cost(num_tokens=prepared.num_tokens, num_sequences=prepared.num_sequences, model=prepared.base_model)
        reservation = self._limiter.claim(request.tenant, cost)
        request.num_claimed_tokens = cost.num_tokens
        if not reservation.claims:  # a plan without limits: nothing is taken, and nothing settled
            self._tell(request, reservation)
            return None
        reservation.end = request.place.end_if_open
        return _Reserved(self, request, reservation)

    async def take(self, request: ClientRequest[Any], reservation: LimitReservation) -> None:
        """Take what is claimed, and note what is left for the client and the receipt.

        Raises:
            RateLimited, ConcurrencyLimited: the tenant's own limits.
        """
        try:
            await self._limiter.take(reservation)
        except BaseException:
            request.num_claimed_tokens = 0  # what is refused here, or was left while it waited, computes nothing
            raise
        finally:
            self._tell(request, reservation)

    def _tell(self, request: ClientRequest[Any], reservation: LimitReservation) -> None:
        request.exchange.headers += request.notices + self._headers(request, reservation)
        request.trail["limits"] = reservation.state

    def _headers(self, request: ClientRequest[Any], reservation: LimitReservation) -> Headers:
        standings, prefix = reservation.standings, request.exchange.error_form.limits_prefix
        dated = dated_headers(prefix, standings, self._wall_clock()) if prefix else []
        return limit_headers(standings) + dated


class _Reserved(AbstractAsyncContextManager[None]):
    """A part of a tenant's limits while its request runs; a generator would take several times the calls."""

    __slots__ = ("_request", "_reservation", "_step")

    def __init__(self, step: LimitsStep, request: ClientRequest[Any], reservation: LimitReservation) -> None:
        self._step = step
        self._request = request
        self._reservation = reservation

    async def __aenter__(self) -> None:
        try:
            await self._step.take(self._request, self._reservation)
        except BaseException:  # __aexit__ is not called after it
            self._settle()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._settle()

    def _settle(self) -> None:
        self._reservation.settle(_num_taken(self._request))


def _num_taken(request: ClientRequest[Any]) -> int:
    """Tokens that the request took; the platform's failure is not the tenant's use, beyond what came of it."""
    output = request.output
    if is_platform_failure(request.error):
        return 0 if output is None else min(output.usage.num_output_tokens, output.num_limited_tokens)
    return request.num_claimed_tokens if output is None else output.num_limited_tokens
