"""What every route that computes has in common: the edge, and the way from a connection to a body.

    key -> place in the gateway -> body -> the route's own answer

The place is given back on every way out, and a client that leaves ends the answer.  What a body means, and what is
answered, is the route's own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from stratos.common.errors import Retryable, StratosError
from stratos.core.requests.terms import RequestTerms
from stratos.core.tenant import Tenant
from stratos.text.tokenizer import Tokenizer
from stratos_gateway.access.auth import Authenticator, bearer_key
from stratos_gateway.access.client_address import check_address
from stratos_gateway.access.concurrency import Admission, Place
from stratos_gateway.generation.platform import Platform
from stratos_gateway.http.body import read_json, until_disconnect
from stratos_gateway.http.deadline import TimeAllowed, time_allowed
from stratos_gateway.http.errors import public_param
from stratos_gateway.http.exchange import exchange_of
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.ledger.billing import Billing
from stratos_gateway.limits.limiter import Cost, TenantLimiter
from stratos_gateway.observe.recent_load import RecentLoad
from stratos_gateway.overflow.client import OverflowClient
from stratos_gateway.policies.gate import NO_SCREENS, Screens
from stratos_gateway.policies.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What all routes that compute share."""

    authenticator: Authenticator
    admission: Admission
    platform: Platform
    tokenizer: Tokenizer
    limits: HttpLimits
    limiter: TenantLimiter
    billing: Billing | None = None
    """``None`` where nothing is billed."""
    content: Screens = NO_SCREENS
    overflow: OverflowClient | None = None
    """Where requests go that would wait too long; ``None`` lets them wait."""
    recent_load: RecentLoad | None = None
    """Hears how answers were; ``None`` where no router is told of it."""

    async def authenticate(self, request: Request) -> Tenant:
        """Whose key a request carries; raises like ``Authenticator``.

        Raises:
            PermissionDenied: the key may not be used from the client's address.
        """
        exchange = exchange_of(request)
        tenant = await self.authenticator.authenticate(bearer_key(request.headers))
        facts = exchange.facts
        facts.tenant, facts.key_id, facts.plan = tenant.name, tenant.key_id, tenant.plan.name
        facts.priority_class = tenant.priority_class
        check_address(tenant, exchange.client)
        return tenant


@dataclass(slots=True)
class Spending:
    """What a request has used so far; until it is known, all that it may come to use."""

    num_tokens: int
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a request is answered, and until when it must have begun and ended; monotonic seconds."""

    tenant: Tenant
    place: Place
    arrival_s: float
    deadline_s: float
    end_s: float

    def dated(self, terms: RequestTerms) -> RequestTerms:
        """``terms`` with the request's times."""
        return replace(terms, arrival_s=self.arrival_s, deadline_s=self.deadline_s, end_s=self.end_s)


class EdgeEndpoint(ABC):
    """ASGI application of one route that computes.

    Args:
        edge: shared with the other routes.
        prompt_param: what the route calls its prompt, for errors of other processes.
    """

    def __init__(self, edge: Edge, prompt_param: str) -> None:
        self._edge = edge
        self._prompt_param = prompt_param

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors are raised to the edge middleware."""
        edge, request = self._edge, Request(scope, receive)
        arrival_s = edge.platform.clock.now()
        tenant = await edge.authenticate(request)
        exchange_of(request).facts.is_inference = True
        with edge.admission.enter(tenant) as place:
            limits = edge.limits
            allowed = time_allowed(request, TimeAllowed(limits.max_deadline_s, limits.max_answer_s))
            deadline_s, end_s = arrival_s + allowed.first_token_s, arrival_s + allowed.end_s
            caller = Caller(tenant, place, arrival_s, deadline_s, end_s)
            place.refusals.append(partial(edge.authenticator.refusal, tenant))
            body = await read_json(request, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s)
            try:
                await until_disconnect(receive, self._answer(request, body, caller, send))
            except StratosError as error:
                self._name_param(error)
                raise

    @asynccontextmanager
    async def _within_limits(self, request: Request, tenant: Tenant, cost: Cost) -> AsyncIterator[Spending]:
        """Hold a request's part of its tenant's limits; at the end it is settled to what was spent.

        Raises:
            RateLimited, ConcurrencyLimited, RequestOverRate: the tenant's own limits.
            InsufficientQuota: its budget is spent.
        """
        limiter, exchange = self._edge.limiter, exchange_of(request)
        billing = self._edge.billing
        warnings = [] if billing is None else await billing.budgets.check(tenant)
        reservation, spending = limiter.claim(tenant, cost), Spending(cost.num_tokens)
        try:
            try:
                await limiter.take(reservation)
            finally:
                exchange.headers = warnings + reservation.headers
            yield spending
        except Retryable:
            spending.num_tokens = spending.num_output_tokens  # the platform's failure is not the tenant's use
            raise
        finally:
            reservation.settle(spending.num_tokens)

    async def _check_input(self, screen: Screen | None, texts: Sequence[str], spending: Spending) -> None:
        """Refuse what the tenant's policy does not let in; such a request takes no tokens of its limits."""
        if screen is None:
            return
        reserved, spending.num_tokens = spending.num_tokens, 0
        await screen.check_input(texts, self._prompt_param)
        spending.num_tokens = reserved

    def _name_param(self, error: StratosError) -> None:
        """Workers and the router name fields of our messages; the client knows the route's parameters."""
        if error.is_from_peer:
            error.param = public_param(error.param, self._prompt_param)

    @abstractmethod
    async def _answer(self, request: Request, body: dict[str, Any], caller: Caller, send: Send) -> None:
        """Answer a body; cancelled when the client leaves."""
