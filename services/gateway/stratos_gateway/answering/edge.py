"""The edge that all routes which compute share: whose key, and a place in the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Send

from stratos.common.clock import Clock
from stratos.core.tenant import Tenant
from stratos_gateway.access.auth import Authenticator, bearer_key, check_address
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.deadline import TimeAllowed, time_allowed
from stratos_gateway.http.exchange import exchange_of
from stratos_gateway.http.limits import HttpLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Shared by all routes of the process."""

    authenticator: Authenticator
    admission: Admission
    limits: HttpLimits
    clock: Clock

    async def authenticate(self, http: Request) -> Tenant:
        """The tenant whose key a request carries; raises like ``Authenticator``.

        Raises:
            PermissionDenied: the key may not be used from the client's address.
        """
        exchange = exchange_of(http)
        tenant = await self.authenticator.authenticate(bearer_key(http.headers))
        facts = exchange.facts
        facts.tenant, facts.key_id, facts.plan = tenant.name, tenant.key_id, tenant.plan.name
        facts.priority_class = tenant.priority_class
        check_address(tenant, exchange.client)
        return tenant

    @contextmanager
    def admit(
        self, http: Request, send: Send, tenant: Tenant, arrival_s: float, prompt_param: str
    ) -> Iterator[ClientRequest[Any]]:
        """The record of a request that computes, with a place of its own, which is given back on every way out.

        Raises:
            Draining, Overloaded, ConcurrencyLimited: there is no place.
            BadRequest: its deadline cannot be read.
        """
        exchange = exchange_of(http)
        exchange.facts.is_inference = True
        with self.admission.enter(tenant) as place:
            allowed = time_allowed(http, TimeAllowed(self.limits.max_deadline_s, self.limits.max_answer_s))
            place.refusals.append(partial(self.authenticator.refusal, tenant))
            yield ClientRequest(
                http=http,
                send=send,
                exchange=exchange,
                tenant=tenant,
                place=place,
                arrival_s=arrival_s,
                deadline_s=arrival_s + allowed.first_token_s,
                end_s=arrival_s + allowed.end_s,
                prompt_param=prompt_param,
            )
