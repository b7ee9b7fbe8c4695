"""GET /v1/responses with an upgrade: who may open a socket, and how many."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stratos.common.errors import BadRequest, ConcurrencyLimited, Overloaded
from stratos.common.shed_reason import ShedReason
from stratos.core.tenant import Tenant
from stratos_gateway.answering.edge import Edge
from stratos_gateway.http.exchange import exchange_of
from stratos_gateway.http.protocol import UPGRADE, Upgrade
from stratos_gateway.responses.local import LocalResponse
from stratos_gateway.sockets.connection import ConnectionBounds, SocketConnection
from stratos_gateway.sockets.frames import INTERNAL_ERROR, accept_key
from stratos_gateway.sockets.session import SocketSession
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.sockets.turns import SocketTurn

SWITCHING = 101
_KEY_BYTES = 16


class SocketRoute:
    """ASGI application of the route.

    Args:
        edge: keys, limits and clock of all routes.
        app: answers the requests of sockets, as it answers those of clients.
        config: bounds.
        show_open: takes how many are open.
    """

    def __init__(
        self, edge: Edge, app: Callable[[], ASGIApp], config: SocketsConfig, show_open: Callable[[int], None]
    ) -> None:
        self._edge = edge
        self._app = app
        self._config = config
        self._show_open = show_open
        self._by_tenant: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to open a socket, and be that socket."""
        http = Request(scope, receive)
        upgrade: Upgrade | None = scope.get("extensions", {}).get(UPGRADE)
        if upgrade is None or http.headers.get("upgrade", "").lower() != "websocket":
            raise HTTPException(405, headers={"Allow": "POST"})
        key, tenant = _checked_key(http), await self._edge.authenticate(http)
        self._edge.allowed(http)
        self._edge.admission.check(tenant)
        with self._enter(tenant):
            await self._live(http, upgrade, key, tenant)

    async def _live(self, http: Request, upgrade: Upgrade, key: bytes, tenant: Tenant) -> None:
        exchange, limits = exchange_of(http), self._edge.limits
        bounds = ConnectionBounds(limits.max_body_bytes, limits.body_timeout_s, limits.write_timeout_s)
        exchange.status = SWITCHING
        headers = [
            (b"upgrade", b"websocket"),
            (b"connection", b"Upgrade"),
            (b"sec-websocket-accept", accept_key(key)),
            (b"x-request-id", exchange.request_id.encode()),
        ]
        take_place = partial(self._edge.bodies.hold, tenant)
        connection = upgrade.switch(
            headers, lambda transport, flow: SocketConnection(transport, flow, bounds, take_place)
        )
        local, scope = LocalResponse(self._config.kept_bytes), http.scope

        def turn(number: int) -> SocketTurn:
            return SocketTurn(self._app(), scope, f"{exchange.request_id}-{number}", connection, local)

        try:
            await SocketSession(connection, turn, self._config, self._edge.clock).run()
        finally:
            connection.close(INTERNAL_ERROR, "the gateway could not go on")  # unless it is closed already

    @contextmanager
    def _enter(self, tenant: Tenant) -> Iterator[None]:
        if self._by_tenant[tenant.id] >= self._config.max_open_per_tenant:
            raise ConcurrencyLimited(f"{self._config.max_open_per_tenant} sockets of this tenant are open, its limit")
        if self._by_tenant.total() >= self._config.max_open:
            raise Overloaded("the gateway has too many sockets open", reason=ShedReason.QUEUE_FULL)
        self._by_tenant[tenant.id] += 1
        self._show_open(self._by_tenant.total())
        try:
            yield
        finally:
            self._by_tenant[tenant.id] -= 1
            if not self._by_tenant[tenant.id]:
                del self._by_tenant[tenant.id]
            self._show_open(self._by_tenant.total())


def _checked_key(http: Request) -> bytes:
    """The client's key; raises ``BadRequest`` where the handshake is none of RFC 6455."""
    key = http.headers.get("sec-websocket-key", "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key or http.headers.get("sec-websocket-version") != "13":
        raise BadRequest("this is no handshake of a WebSocket of version 13", code="invalid_handshake")
    return key.encode()
