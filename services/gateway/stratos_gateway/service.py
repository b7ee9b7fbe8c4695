"""The gateway as a service: its life, from the first open file to the last open stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc.aio
from redis.exceptions import RedisError

from stratos.api.gateway.v1 import limits_pb2, limits_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc
from stratos.common.clock import SystemClock
from stratos.common.errors import DependencyDown, Draining
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import env_name_of
from stratos_gateway.access.snapshot_servicer import SnapshotServicer
from stratos_gateway.admin.app import AdminPort, build_server
from stratos_gateway.answering.edge import Edge
from stratos_gateway.background.runs import BackgroundRuns
from stratos_gateway.batches.runs import BatchRuns
from stratos_gateway.http.listener import Listener, inherit_listener, open_listener
from stratos_gateway.http.protocol import ConnectionsState
from stratos_gateway.http.server import HttpServer
from stratos_gateway.http.tls import admin_context, api_context
from stratos_gateway.limits.peer_gateways import LimitsServicer, PeerGateways
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.live_revisions import watch_revisions
from stratos_gateway.observe.request_book import RequestBook
from stratos_gateway.parts import GatewayParts, OpenBackends, Surroundings, open_parts
from stratos_gateway.rollouts.drift import prompt_logprobs
from stratos_gateway.settings import GatewaySettings
from stratos_gateway.wiring import build_edge, build_gateway

_log = logging.getLogger(__name__)
FLUSH_S = 1.0
"""Time that the errors of open streams get to leave, taken from the drain's own time."""
FORM_BYTES = 1024 * 1024
"""Room of an upload beside its file."""
_DRAIN_POLL_S = 0.02


class GatewayService(Service):
    """One gateway process.

    Args:
        settings: of the process.
        open_backends: connects to them; called inside the event loop.
    """

    name = "gateway"

    def __init__(self, settings: GatewaySettings, open_backends: OpenBackends) -> None:
        self._settings = settings
        self._open_backends = open_backends
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._parts: GatewayParts | None = None
        self._http: HttpServer
        self._admin_http: HttpServer | None = None
        self._is_leaving = False
        self._background: BackgroundRuns | None = None
        self._batches: BatchRuns | None = None

    @property
    def http_address(self) -> str:
        """host:port of the OpenAI API; known once ``open`` has run."""
        return self._http.address

    @property
    def admin_address(self) -> str:
        """host:port of the admin API; empty where there is none."""
        return "" if self._admin_http is None else self._admin_http.address

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Other gateways may ask for a copy of the snapshot, and who shares the limits."""
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(SnapshotServicer(self._snapshot_text), server)
        servicer = LimitsServicer(lambda: None if self._parts is None else self._parts.leaser)
        limits_pb2_grpc.add_LimitsServiceServicer_to_server(servicer, server)
        return [
            snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name,
            limits_pb2.DESCRIPTOR.services_by_name["LimitsService"].full_name,
        ]

    async def open(self) -> None:
        """Read the models' files, connect, bind the HTTP ports."""
        settings, clock = self._settings, SystemClock()
        around = Surroundings(
            clock=clock, registry=self.metrics, tracing=self.tracing, dialer=self.dialer, stack=self._stack
        )
        parts = self._parts = await open_parts(settings, self._open_backends, around)
        metrics, edge = parts.metrics, build_edge(parts)
        book = RequestBook(metrics, clock, logs_access=settings.observe.access_log)
        built = build_gateway(parts, edge, book, self.not_ready_reason)
        app, self._background, self._batches = built.app, built.background, built.batches
        tls = self._tls(metrics)
        self._http = HttpServer(
            app,
            self._listener(settings.http_listen, settings.http_listener_fd, "http_listen"),
            ConnectionsState(
                limits=settings.http,
                num_open=metrics.connections,
                num_refused=metrics.connections_refused,
                uploads={"/v1/files": settings.files.max_bytes + FORM_BYTES},
            ),
            trusted_proxies=settings.edge.trusted_proxies,
            tls=tls,
            before_stop=parts.admission.end_all,
        )
        self._stack.callback(self._http.close)
        self._open_admin(parts, edge, book, tls)
        for model in parts.models:
            _log.info("model %s, digest %s", model.base.name, model.base.digest)

    def _open_admin(self, parts: GatewayParts, edge: Edge, book: RequestBook, api: ssl.SSLContext | None) -> None:
        settings, stores = self._settings, parts.backends.admin
        if stores is None or not (settings.admin.listen or settings.admin.listener_fd is not None):
            return
        listener = self._listener(settings.admin.listen, settings.admin.listener_fd, "admin", "listen")
        tls = None if settings.admin.plaintext else admin_context(settings.tls, api)
        port = AdminPort(
            listener=listener,
            config=settings.admin,
            limits=settings.http,
            trusted_proxies=settings.edge.trusted_proxies,
            tls=tls,
        )
        self._admin_http = build_server(port, stores, edge.authenticate, parts.metrics, book)
        self._stack.callback(self._admin_http.close)
        _log.info("admin API at %s://%s/admin/v1", "http" if tls is None else "https", listener.address)

    def _tls(self, metrics: GatewayMetrics) -> ssl.SSLContext | None:
        if self._settings.http_tls is None:
            return None
        context = api_context(self._settings.http_tls)
        metrics.show_certificate_expiry(context.not_after_unix_s)
        return context.listening

    def _listener(self, listen: str, fd: int | None, *field: str) -> Listener:
        """The inherited socket if there is one, else one of this process; ``field`` is the setting, for messages."""
        name = env_name_of(type(self._settings), field)
        return open_listener(listen, name) if fd is None else inherit_listener(fd, f"{name}ER_FD")

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """The HTTP server, the watch over sessions, what keeps the backends fresh."""
        parts, own = self._opened, {} if self._admin_http is None else {"admin": self._admin_http.run()}
        own["load"] = parts.recent_load.run(parts.backends.routers)
        own |= {"http": self._http.run(), "sessions": parts.sessions.run(), "limits": self._renew_limits()}
        poll_s, live_workers = self._settings.model_records.live_poll_s, parts.backends.routers.live_workers
        own["live-revisions"] = watch_revisions(parts.models, live_workers, poll_s)
        if (watch_drift := parts.backends.watch_drift) is not None:
            own["rollout-drift"] = watch_drift(partial(prompt_logprobs, parts.fleet))
        if (exchange := parts.backends.exchange_gateways) is not None:
            own["limits-peers"] = PeerGateways(parts.leaser, exchange).run()
        if parts.streams is not None:
            own["streams"] = parts.streams.run()
        if self._background is not None:
            own["background"] = self._background.run()
        if self._batches is not None:
            own["batches"] = self._batches.run()
        if parts.billing is not None:
            own |= parts.billing.tasks(parts.sessions)
        return {**own, **{name: work() for name, work in parts.backends.tasks.items()}}

    async def _renew_limits(self) -> None:
        """Renew slices, once it is known which store has them."""
        parts = self._opened
        if parts.backends.first_look is not None:
            await parts.backends.first_look()
        await parts.leaser.run()

    @property
    def _opened(self) -> GatewayParts:
        assert self._parts is not None, "after open"
        return self._parts

    async def warm_up(self) -> None:
        """Wait for the first look at the backends, and say where the API is."""
        if (first_look := self._opened.backends.first_look) is not None:
            await first_look()
        scheme = "http" if self._settings.http_tls is None else "https"
        _log.info("OpenAI API at %s://%s/v1", scheme, self._http.address)

    def not_ready_reason(self) -> str:
        """Draining, or without tenants and keys; a full gateway is ready."""
        if self._is_leaving:
            return "draining"
        return "" if self._parts is None else self._parts.backends.not_ready_reason()

    def begin_leave(self) -> None:
        """Requests that still come are answered; their connections, and idle ones, end."""
        self._is_leaving = True
        self._http.begin_leave()

    async def drain(self) -> None:
        """Refuse new requests, or leave them to the other gateways of the same port, and let open ones end.

        Those that do not end in time get an error.
        """
        if self._background is not None:
            await self._background.leave()
        if self._batches is not None:
            await self._batches.leave()
        limit_s = self._settings.drain_timeout_s
        try:
            async with asyncio.timeout(max(limit_s - FLUSH_S, limit_s / 2)):
                await self._http.until_last_requests()
                self._refuse_more()
                await self._until_idle()
        except TimeoutError:
            self._refuse_more()
            self._opened.bodies.end_all(Draining("this gateway leaves before the request is complete; try again"))
            self._opened.admission.end_all()
            await self._until_idle()
        if (evidence := self._opened.backends.rollouts) is not None:
            with contextlib.suppress(DependencyDown, RedisError, TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await evidence.publish()  # its task ends with the process, between two writes

    def _refuse_more(self) -> None:
        self._opened.admission.is_draining = True
        self._http.end_idle()

    async def _until_idle(self) -> None:
        while self._opened.admission.num_open or len(self._opened.bodies):  # noqa: ASYNC110 - only at the end of a process
            await asyncio.sleep(_DRAIN_POLL_S)

    async def close(self) -> None:
        """Close everything that ``open`` opened, in reverse."""
        await self._stack.aclose()

    async def _snapshot_text(self) -> bytes:
        text = None if self._parts is None else self._parts.backends.snapshot_text
        if text is None:
            raise DependencyDown("this gateway keeps no snapshot")
        return await text()
