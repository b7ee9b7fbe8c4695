"""The edge that all routes which compute share: whose key, a place in the gateway, and the time that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.types import Send

from stratos.common.clock import Clock
from stratos.common.errors import BadRequest
from stratos.core.requests.limits import DEADLINE_MS, MAX_DEADLINE_DIGITS
from stratos.core.tenant import Tenant
from stratos_gateway.access.auth import Authenticator, check_address, sent_key
from stratos_gateway.access.body_places import BodyPlaces
from stratos_gateway.access.concurrency import Admission, Place
from stratos_gateway.answering.request import ClientRequest
from stratos_gateway.http.body import Leniently, first_headers, headers_named, read_json, waited_in, whole_json
from stratos_gateway.http.exchange import exchange_of
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.sse import patient_send

HEADER = "x-stratos-deadline-ms"
_HEADER = HEADER.encode()


class TimeAllowed(NamedTuple):
    """Seconds from a request's arrival."""

    first_token_s: float
    end_s: float
    """Seconds to the end of the whole answer."""


def time_allowed(request: Request, most: TimeAllowed) -> TimeAllowed:
    """How long a request may take.

    Args:
        request: with or without the header, which bounds the whole answer.
        most: the server's maxima, which stand where the client asks for nothing or for more.

    Raises:
        BadRequest: the header is not a whole number in its range.
    """
    if _HEADER not in first_headers(request.scope):
        return most
    values = headers_named(request.scope, _HEADER)
    text = values[0] if len(values) == 1 else ""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DEADLINE_DIGITS
    if not is_number or not DEADLINE_MS.minimum <= int(text) <= DEADLINE_MS.maximum:
        low, high = int(DEADLINE_MS.minimum), int(DEADLINE_MS.maximum)
        raise BadRequest(f"{HEADER} must be one whole number of milliseconds from {low} to {high}", param=HEADER)
    asked_s = int(text) / 1000
    return TimeAllowed(min(asked_s, most.first_token_s), min(asked_s, most.end_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Shared by all routes of the process."""

    authenticator: Authenticator
    admission: Admission
    bodies: BodyPlaces
    limits: HttpLimits
    clock: Clock
    pay_reads: Callable[[Tenant, int], None]
    """Counts calls of a tenant about what is kept; raises ``RateLimited``."""

    def allowed(self, http: Request) -> TimeAllowed:
        """How long a request may take; raises like ``time_allowed``."""
        return time_allowed(http, TimeAllowed(self.limits.max_deadline_s, self.limits.max_answer_s))

    async def authenticate(self, http: Request) -> Tenant:
        """The tenant whose key a request carries; raises like ``Authenticator``.

        Raises:
            PermissionDenied: the key may not be used from the client's address.
        """
        exchange = exchange_of(http)
        tenant = await self.authenticator.authenticate(sent_key(first_headers(http.scope)))
        exchange.note_tenant(tenant.name, tenant.key_id, tenant.plan.name, tenant.priority_class)
        check_address(tenant, exchange.client)
        return tenant

    async def reader(self, http: Request, calls: int = 1) -> Tenant:
        """The tenant who asks for what is kept.

        Args:
            http: the request.
            calls: that it counts as.

        Raises:
            RateLimited: the tenant asks too often.
            StratosError: like ``authenticate``.
        """
        tenant = await self.authenticate(http)
        self.pay_reads(tenant, calls)
        return tenant

    def begin(self, http: Request, tenant: Tenant, prompt_param: str) -> None:
        """Note that a request computes, and that there may be a place for it; raises like ``Admission.check``."""
        exchange = exchange_of(http)
        exchange.facts.is_inference, exchange.prompt_param = True, prompt_param
        self.admission.check(tenant)

    async def read(self, http: Request, tenant: Tenant, prompt_param: str) -> dict[str, Any]:
        """The body of a request that computes, read in a place of its own where it has to be waited for.

        Raises:
            Draining, Overloaded, ConcurrencyLimited: there is no place for the body, or for what it asks for.
            StratosError: like ``read_json``.
        """
        limits = self.limits
        self.begin(http, tenant, prompt_param)
        if (body := whole_json(http, limits.max_body_bytes)) is not None:
            return body
        reading = read_json(http, max_bytes=limits.max_body_bytes, timeout_s=limits.body_timeout_s)
        return await waited_in(partial(self.bodies.enter, tenant), reading)

    def reading(self, *, is_recorded: bool) -> Leniently:
        """Names of fields that are not known, of a body that is checked within; empty where they are refused.

        Args:
            is_recorded: another gateway, which may have been lenient, has taken the body.
        """
        return Leniently(is_lenient=self.limits.lenient or is_recorded)

    def record(
        self, http: Request, send: Send, tenant: Tenant, place: Place, arrival_s: float, allowed: TimeAllowed
    ) -> ClientRequest[Any]:
        """The record of a request that computes, in its place."""
        place.refusals.append(partial(self.authenticator.refusal, tenant))
        return ClientRequest(
            http=http,
            send=patient_send(send, self.limits.write_timeout_s),
            exchange=exchange_of(http),
            tenant=tenant,
            place=place,
            arrival_s=arrival_s,
            received_s=self.clock.now(),
            deadline_s=arrival_s + allowed.first_token_s,
            end_s=arrival_s + allowed.end_s,
            until_open=partial(self.admission.until_open, place),
        )
