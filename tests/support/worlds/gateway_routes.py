"""The gateway's routes in front of a router without room, for tests of what happens before anything is placed."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any, cast

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import Overloaded
from stratos.core.gateway_load import GatewayLoad
from stratos.core.placement import Outcome, Placement, PlacementRequest
from stratos.core.tenant import Tenant
from stratos_gateway.access.body_places import BodyPlaces
from stratos_gateway.access.call_rate import read_rate
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.answering.edge import Edge
from stratos_gateway.answering.endpoint import Endpoint
from stratos_gateway.answering.sending import ChunkSender
from stratos_gateway.app import GatewayApp
from stratos_gateway.batches.routes import BatchRoutes
from stratos_gateway.batches.settings import BatchesConfig
from stratos_gateway.embedding.preparation import EmbeddingPreparer
from stratos_gateway.embedding.source import VectorSender, VectorSource
from stratos_gateway.files.routes import FileRoutes
from stratos_gateway.files.settings import FilesConfig
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.prompt_names import PromptDigests
from stratos_gateway.generation.source import WorkersSource
from stratos_gateway.http.limits import HttpLimits
from stratos_gateway.limits.leaser import Leaser
from stratos_gateway.limits.leases import NO_LEASES
from stratos_gateway.limits.limiter import TenantLimiter
from stratos_gateway.limits.settings import LimitsConfig
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.moderation.route import ModerationPreparer, ModerationSource
from stratos_gateway.observe.request_book import RequestBook
from stratos_gateway.preparation.dialects import DIALECTS, ERROR_FORMS
from stratos_gateway.preparation.generation import GenerationPreparer
from stratos_gateway.responses.state import Responses
from stratos_gateway.routes.receipt import ReceiptRoute
from stratos_gateway.routes.responses import ResponseRoutes
from stratos_gateway.routes.table import build_routes
from stratos_gateway.routes.usage import UsageRoute
from stratos_gateway.scoring.dialects import SCORING_DIALECTS
from stratos_gateway.scoring.sending import ScoreSender
from stratos_gateway.sockets.route import SocketRoute
from stratos_gateway.sockets.settings import SocketsConfig
from stratos_gateway.streams.routes import RecordedStreams, StreamResume
from stratos_gateway.tokenization.endpoints import ready_endpoints, tokenizer_info
from stratos_gateway.tokenization.preparation import TokenCounting
from stratos_gateway.tokenization.source import ReadySender
from tests.support.reference.shipped_model import preparation_tools, served_model


class Full:
    """A router without room, and keys that are all known: a request that was accepted is answered with 503."""

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        raise Overloaded("full")

    async def report_load(self, load: GatewayLoad) -> None: ...

    def suspects(self, tenant: str) -> bool:
        return False

    async def convict(self, request: PlacementRequest) -> None: ...

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None: ...

    async def authenticate(self, key: str) -> Tenant:
        return Tenant(name="t")

    def refusal(self, tenant: Tenant) -> None: ...


def full_routes(max_body_bytes: int, clock: Clock | None = None) -> list[BaseRoute]:
    """All routes of one gateway that has the shipped model."""
    metrics, full, unreached = GatewayMetrics(CollectorRegistry()), Full(), cast("Any", None)
    clock = clock or SystemClock()
    tools = preparation_tools(served_model())
    catalogue = tools.catalogue
    fleet = FleetAccess(
        routers=full,
        prompt_digests=PromptDigests(b"secret"),
        sessions=unreached,
        clock=clock,
        metrics=metrics,
        placement_timeout_s=1.0,
    )
    admission, limits = (
        Admission(64, 64, metrics),
        HttpLimits(max_body_bytes=max_body_bytes, body_timeout_s=5, write_timeout_s=5),
    )
    bodies = BodyPlaces(64, 64, metrics.open_bodies.set)
    edge = Edge(
        authenticator=full,
        admission=admission,
        bodies=bodies,
        limits=limits,
        clock=clock,
        pay_reads=read_rate(clock, 6000),
    )
    steps = [LimitsStep(TenantLimiter(Leaser(NO_LEASES, clock, LimitsConfig()), clock))]
    workers = [WorkersSource(fleet, admission)]
    sender, vectors = ChunkSender(limits), [VectorSource(fleet, admission, unreached, 5.0)]
    embedding = EmbeddingPreparer(catalogue)
    scores, verdicts = ScoreSender(fleet), [ModerationSource(admission, clock)]
    streams = RecordedStreams(edge.authenticate, None)
    resume = StreamResume(streams, {})
    return build_routes(
        endpoints={
            **{d.path: Endpoint(edge, GenerationPreparer(tools, d), steps, workers, sender) for d in DIALECTS},
            **{d.path: Endpoint(edge, GenerationPreparer(tools, d), steps, workers, scores) for d in SCORING_DIALECTS},
            "/v1/embeddings": Endpoint(edge, embedding, steps, vectors, VectorSender()),
            "/v1/moderations": Endpoint(edge, ModerationPreparer(), steps, verdicts, ReadySender()),
            **ready_endpoints(edge, steps, TokenCounting(catalogue=catalogue)),
        },
        authenticate=edge.authenticate,
        usage=UsageRoute(edge.authenticate, None),
        receipt=ReceiptRoute(edge.authenticate, None),
        responses=ResponseRoutes(edge.authenticate, Responses(), None, resume),
        sockets=SocketRoute(edge, lambda: unreached, SocketsConfig(), lambda num: None),
        resume_stream=resume,
        files=FileRoutes(edge, None, FilesConfig()),
        batches=BatchRoutes(edge, None, catalogue, BatchesConfig()),
        cancel_stream=streams.cancel,
        catalogue=catalogue,
        health=unreached,
        not_ready_reason=str,
        tokenizer=partial(tokenizer_info, catalogue),
    )


def full_app(max_body_bytes: int, clock: Clock | None = None) -> GatewayApp:
    """The application of these routes."""
    book = RequestBook(GatewayMetrics(CollectorRegistry()), clock or SystemClock())
    return GatewayApp(full_routes(max_body_bytes, clock), book, Random(0), error_forms=ERROR_FORMS)
