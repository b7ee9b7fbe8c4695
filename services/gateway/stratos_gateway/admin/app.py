"""The admin API's own server: its port, and nothing else on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

from starlette.requests import Request

from stratos.core.tenant import Tenant
from stratos_gateway.admin.routes import AdminRoutes, AdminStores
from stratos_gateway.app import GatewayApp
from stratos_gateway.http.listener import Listener
from stratos_gateway.http.protocol import ConnectionsState
from stratos_gateway.http.server import HttpServer
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.settings import GatewaySettings


def build_server(
    settings: GatewaySettings,
    listener: Listener,
    stores: AdminStores,
    authenticate: Callable[[Request], Awaitable[Tenant]],
    metrics: GatewayMetrics,
) -> HttpServer:
    """The server of the admin API; it answers once it runs.

    Args:
        settings: of the process.
        listener: where connections come from.
        stores: what is read and written.
        authenticate: whose key a request carries.
        metrics: of the process; requests of both servers are counted together.
    """
    routes = AdminRoutes(authenticate, stores, settings.admin.max_body_bytes).build()
    limits = replace(settings.http, max_body_bytes=settings.admin.max_body_bytes)
    state = ConnectionsState(limits=limits, num_open=metrics.connections, num_refused=metrics.connections_refused)
    app = GatewayApp(routes, metrics, Random())
    return HttpServer(app, listener, state, trusted_proxies=settings.edge.trusted_proxies)
