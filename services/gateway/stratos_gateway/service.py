"""The gateway as a service: what is opened, in which order, and how it leaves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import grpc.aio
from prometheus_client.registry import Collector

from stratos.api.gateway.v1 import snapshot_pb2, snapshot_pb2_grpc
from stratos.common.clock import SystemClock
from stratos.common.errors import DependencyDown
from stratos.common.ids import new_incarnation
from stratos.core.placement import WorkerRef
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.serving.service import Service
from stratos.rpc.settings import env_name_of
from stratos_gateway.access.auth import Authenticator
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.access.snapshot_servicer import SnapshotServicer
from stratos_gateway.admin.app import AdminPort, build_server
from stratos_gateway.admin.routes import AdminStores
from stratos_gateway.app import GatewayApp, build_routes
from stratos_gateway.generation.embedding_client import EmbeddingClient
from stratos_gateway.generation.platform import Platform
from stratos_gateway.generation.prefix_names import PrefixNames
from stratos_gateway.generation.prompt_digest import PromptDigests
from stratos_gateway.generation.recovery import Cause
from stratos_gateway.http.listener import Listener, inherit_listener, open_listener
from stratos_gateway.http.protocol import ConnectionsState
from stratos_gateway.http.server import HttpServer
from stratos_gateway.http.tls import api_context
from stratos_gateway.ledger.billing import Billing, LedgerAccess
from stratos_gateway.limits.leaser import NO_LEASES, Leaser, Leases
from stratos_gateway.limits.limiter import TenantLimiter
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.adapters import NO_BLOCKS, AdapterSource, Blocks
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.served_model import ServedModel
from stratos_gateway.models.watermark_policy import read_policy
from stratos_gateway.observe.recent_load import RecentLoad
from stratos_gateway.observe.request_book import RequestBook
from stratos_gateway.overflow.client import OverflowClient
from stratos_gateway.policies.classifier import Classifier, HttpClassifier, NoClassifier
from stratos_gateway.policies.gate import ContentGate
from stratos_gateway.policies.prompts import PromptRenderer
from stratos_gateway.policies.source import NO_CONTENT, ContentSource
from stratos_gateway.routers.contract import Routers
from stratos_gateway.routes.edge import Edge
from stratos_gateway.routes.embedding import EmbeddingEndpoint
from stratos_gateway.routes.generation import GenerationEndpoint
from stratos_gateway.routes.health import DeepHealth
from stratos_gateway.routes.preparation import Preparation
from stratos_gateway.routes.usage import UsageRoute
from stratos_gateway.sessions.pool import SessionPool
from stratos_gateway.sessions.session import WorkerSession
from stratos_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)
FLUSH_S = 1.0
"""Time that the errors of open streams get to leave, taken from the drain's own time."""
_DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The services and stores that the gateway calls."""

    routers: Routers
    adapters: AdapterSource | None
    authenticator: Authenticator
    leases: Leases = NO_LEASES
    """Where the limits of tenants are counted over all gateways."""
    admin: AdminStores | None = None
    """What the admin API works on; ``None`` serves none."""
    blocks: Blocks = NO_BLOCKS
    """Models and adapters that are refused for now."""
    content: ContentSource = NO_CONTENT
    """Content policies and prompt templates."""
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]] = field(default_factory=dict)
    """Root tasks that keep them fresh."""
    collectors: Sequence[Collector] = ()
    """Their metrics."""
    ledger: LedgerAccess | None = None
    """Where usage goes; ``None`` bills nothing."""
    snapshot_text: Callable[[], Awaitable[bytes]] | None = None
    """A copy of what they know, for other gateways."""
    first_look: Callable[[], Awaitable[None]] | None = None
    """Waits until they were asked once, with or without success."""
    on_change: Callable[[Callable[[], None]], None] = lambda listener: None
    """Takes what is to be called whenever tenants, keys, adapters or blocks have changed."""
    on_departure: Callable[[Callable[[str], None]], None] = lambda listener: None
    """Takes what is to be called with the name of each tenant that was deleted."""
    not_ready_reason: Callable[[], str] = lambda: ""
    """Why no request can be served with what they know; quick, thread-safe."""


OpenBackends = Callable[[GatewaySettings, AsyncExitStack, GatewayMetrics, Dialer], Awaitable[Backends]]


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
        self._admission: Admission
        self._sessions: SessionPool
        self._leaser: Leaser
        self._billing: Billing | None = None
        self._edge: Edge
        self._recent_load: RecentLoad
        self._http: HttpServer
        self._admin_http: HttpServer | None = None
        self._backends: Backends | None = None
        self._is_leaving = False

    @property
    def http_address(self) -> str:
        """host:port of the OpenAI API; known once ``open`` has run."""
        return self._http.address

    @property
    def admin_address(self) -> str:
        """host:port of the admin API; empty where there is none."""
        return "" if self._admin_http is None else self._admin_http.address

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Other gateways may ask for a copy of the snapshot."""
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(SnapshotServicer(self._snapshot_text), server)
        return [snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].full_name]

    async def open(self) -> None:
        """Read the model's files, connect, bind the HTTP port."""
        settings = self._settings
        model = await asyncio.to_thread(ServedModel.load, settings.model)
        self._stack.callback(model.grammars.close)
        metrics = GatewayMetrics(self.metrics, model.base.name, settings.observe.max_tenant_series)
        metrics.show_model(model.base.digest)
        metrics.show_causes(Cause)
        self._book = RequestBook(metrics, self._clock, logs_access=settings.observe.access_log)
        backends = await self._open_backends(settings, self._stack, metrics, self.dialer)
        self._backends = backends
        self._leaser = Leaser(backends.leases, self._clock, settings.limits)
        for collector in backends.collectors:
            self.metrics.register(collector)
        if backends.ledger is not None:
            self._billing = await Billing.open(backends.ledger, settings.ledger, self._clock, metrics)
            self._stack.push_async_callback(self._billing.writer.close)
            backends.on_departure(self._billing.responses.forget_tenant)
        self._sessions = SessionPool(
            self._build_session, self._clock, settings.sessions.connect_timeout_s, metrics.sessions.set
        )
        self._stack.push_async_callback(self._sessions.close)
        embeddings = EmbeddingClient(settings.sessions.connect_timeout_s, self._clock, self.dialer)
        self._stack.push_async_callback(embeddings.close)
        self._admission = Admission(settings.requests.max_open, settings.requests.max_open_per_tenant, metrics)
        backends.on_change(self._admission.recheck)
        admission = self._admission
        self._recent_load = RecentLoad(new_incarnation(), model.base.digest, lambda: admission.num_open, self._clock)
        platform = Platform(
            routers=backends.routers,
            prompt_digests=PromptDigests(settings.key_pepper.get_secret_value().encode()),
            sessions=self._sessions,
            clock=self._clock,
            metrics=metrics,
            placement_timeout_s=settings.requests.placement_timeout_s,
            tracing=self.tracing,
            zone=settings.zone,
            prefix_names=PrefixNames(settings.max_block_names),
        )
        app = self._build_app(model, backends, platform, embeddings)
        self._http = HttpServer(
            app,
            self._listener(settings.http_listen, settings.http_listener_fd, "http_listen"),
            ConnectionsState(
                limits=settings.http, num_open=metrics.connections, num_refused=metrics.connections_refused
            ),
            trusted_proxies=settings.edge.trusted_proxies,
            tls=self._tls(metrics),
            before_stop=self._admission.end_all,
        )
        self._stack.callback(self._http.close)
        self._open_admin(backends, metrics)
        _log.info("model %s, digest %s", model.base.name, model.base.digest)

    def _open_admin(self, backends: Backends, metrics: GatewayMetrics) -> None:
        settings = self._settings
        if backends.admin is None or not (settings.admin.listen or settings.admin.listener_fd is not None):
            return
        listener = self._listener(settings.admin.listen, settings.admin.listener_fd, "admin", "listen")
        proxies = settings.edge.trusted_proxies
        port = AdminPort(listener=listener, config=settings.admin, limits=settings.http, trusted_proxies=proxies)
        self._admin_http = build_server(port, backends.admin, self._edge.authenticate, metrics, self._book)
        self._stack.callback(self._admin_http.close)
        _log.info("admin API at http://%s/admin/v1", listener.address)

    def _tls(self, metrics: GatewayMetrics) -> ssl.SSLContext | None:
        if self._settings.http_tls is None:
            return None
        context = api_context(self._settings.http_tls)
        metrics.show_certificate_expiry(context.not_after_unix_s)
        return context.listening

    def _open_classifier(self) -> Classifier:
        if not self._settings.policies.classifier_url:
            return NoClassifier()
        classifier = HttpClassifier(self._settings.policies)
        self._stack.push_async_callback(classifier.close)
        return classifier

    def _open_overflow(self, model: ServedModel) -> OverflowClient | None:
        if not self._settings.overflow.url:
            return None
        client = OverflowClient(self._settings.overflow, lambda text: len(model.tokenizer.encode_plain(text)))
        self._stack.push_async_callback(client.close)
        return client

    def _listener(self, listen: str, fd: int | None, *field: str) -> Listener:
        """The inherited socket if there is one, else one of this process; ``field`` is the setting, for messages."""
        name = env_name_of(type(self._settings), field)
        return open_listener(listen, name) if fd is None else inherit_listener(fd, f"{name}ER_FD")

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        """The HTTP server, the watch over sessions, what keeps the backends fresh."""
        own = {} if self._admin_http is None else {"admin": self._admin_http.run()}
        assert self._backends is not None, "tasks start after open"
        own["load"] = self._recent_load.run(self._backends.routers)
        own |= {"http": self._http.run(), "sessions": self._sessions.run(), "limits": self._leaser.run()}
        if self._billing is not None:
            own |= self._billing.tasks(self._sessions)
        return {**own, **{name: work() for name, work in self._backends.tasks.items()}}

    async def warm_up(self) -> None:
        """Wait for the first look at the backends, and say where the API is."""
        if self._backends is not None and self._backends.first_look is not None:
            await self._backends.first_look()
        scheme = "http" if self._settings.http_tls is None else "https"
        _log.info("OpenAI API at %s://%s/v1", scheme, self._http.address)

    def not_ready_reason(self) -> str:
        """Draining, or without tenants and keys; a full gateway is ready."""
        if self._is_leaving:
            return "draining"
        return self._backends.not_ready_reason() if self._backends is not None else ""

    def begin_leave(self) -> None:
        """Requests that still come are answered; their connections, and idle ones, end."""
        self._is_leaving = True
        self._http.begin_leave()

    async def drain(self) -> None:
        """Refuse new requests, or leave them to the other gateways of the same port, and let open ones end.

        Those that do not end in time get an error.
        """
        self._admission.is_draining = True
        self._http.end_idle()
        limit_s = self._settings.drain_timeout_s
        try:
            async with asyncio.timeout(max(limit_s - FLUSH_S, limit_s / 2)):
                await self._until_idle()
        except TimeoutError:
            self._admission.end_all()
            await self._until_idle()

    async def _until_idle(self) -> None:
        while self._admission.num_open:  # noqa: ASYNC110 - only at the end of a process
            await asyncio.sleep(_DRAIN_POLL_S)

    async def close(self) -> None:
        """Close everything that ``open`` opened, in reverse."""
        await self._stack.aclose()

    async def _snapshot_text(self) -> bytes:
        if self._backends is None or self._backends.snapshot_text is None:
            raise DependencyDown("this gateway keeps no snapshot")
        return await self._backends.snapshot_text()

    def _build_session(self, worker: WorkerRef) -> WorkerSession:
        session = partial(WorkerSession, worker, self._clock, self._settings.sessions, self.dialer)
        return session() if self._billing is None else session(self._billing.meter.on_counts)

    def _build_app(
        self, model: ServedModel, backends: Backends, platform: Platform, embeddings: EmbeddingClient
    ) -> GatewayApp:
        settings = self._settings
        catalogue = ModelCatalogue(model.base, backends.adapters, backends.blocks)
        preparation = Preparation(
            model=model,
            catalogue=catalogue,
            default_max_tokens=settings.model.default_max_tokens,
            prompts=PromptRenderer(backends.content),
            watermarks=read_policy(settings.watermark),
            is_metered=self._billing is not None,
        )
        edge = self._edge = Edge(
            authenticator=backends.authenticator,
            admission=self._admission,
            platform=platform,
            tokenizer=model.tokenizer,
            limits=settings.http,
            limiter=TenantLimiter(self._leaser, self._clock, model.base.digest[:16]),
            overflow=self._open_overflow(model),
            billing=self._billing,
            content=ContentGate(backends.content, self._open_classifier(), platform.metrics),
            recent_load=self._recent_load,
        )
        routes = build_routes(
            chat=GenerationEndpoint(edge, preparation.chat, "messages"),
            completion=GenerationEndpoint(edge, preparation.completion, "prompt"),
            embedding=EmbeddingEndpoint(edge, model, catalogue, embeddings, settings.requests.embedding_timeout_s),
            authenticate=edge.authenticate,
            usage=UsageRoute(edge.authenticate, self._billing),
            catalogue=catalogue,
            health=DeepHealth(model, platform, embeddings, settings.health),
            not_ready_reason=self.not_ready_reason,
        )
        return GatewayApp(
            routes, self._book, Random(), self.tracing, settings.trace_sample_ratio, settings.edge.cors_origins
        )
