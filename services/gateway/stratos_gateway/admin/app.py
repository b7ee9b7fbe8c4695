"""The admin API's own server: its port, and nothing else on it."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random

from starlette.requests import Request

from stratos.core.tenant import Tenant
from stratos_gateway.access.call_rate import CallRate
from stratos_gateway.admin.routes import AdminRoutes, AdminStores
from stratos_gateway.admin.settings import AdminConfig
from stratos_gateway.app import GatewayApp
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.http.listener import Listener
from stratos_gateway.http.protocol import ConnectionsState
from stratos_gateway.http.server import HttpServer
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.observe.request_book import RequestBook

_BURST = 60
"""Calls of a tenant that may follow each other at once after a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminPort:
    """Where the admin API listens, and the bounds of its connections."""

    listener: Listener
    config: AdminConfig
    limits: HttpLimits
    trusted_proxies: tuple[str, ...]
    tls: ssl.SSLContext | None
    """``None`` is plain HTTP."""


def build_server(
    port: AdminPort,
    stores: AdminStores,
    authenticate: Callable[[Request], Awaitable[Tenant]],
    metrics: GatewayMetrics,
    book: RequestBook,
) -> HttpServer:
    """The server of the admin API; it answers once it runs.

    Args:
        port: where connections come from.
        stores: what is read and written.
        authenticate: whose key a request carries.
        metrics: of the process; connections of both servers are counted together.
        book: requests of both are.
    """
    limits = replace(port.limits, max_body_bytes=port.config.max_body_bytes)
    rate = CallRate(book.clock, port.config.calls_per_min, _BURST, "calls of the admin API")
    app = GatewayApp(AdminRoutes(authenticate, stores, limits, rate).build(), book, Random())
    state = ConnectionsState(
        limits=limits,
        num_open=metrics.connections,
        num_refused=metrics.connections_refused,
    )
    return HttpServer(app, port.listener, state, trusted_proxies=port.trusted_proxies, tls=port.tls)
