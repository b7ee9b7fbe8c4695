"""The gateway's tables: which steps are around a request, which sources answer it, which routes there are.

A new step is a line in ``steps``, a new source a line in ``generation_sources``, a new dialect of the generation API a
row in ``preparation/dialects.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from starlette.types import ASGIApp

from stratos_gateway.answering.contract import Source, Step
from stratos_gateway.answering.edge import Edge
from stratos_gateway.answering.endpoint import Endpoint, no_record
from stratos_gateway.answering.output import ChunkOutput
from stratos_gateway.answering.sending import ChunkSender
from stratos_gateway.app import GatewayApp
from stratos_gateway.background.responses import BackgroundResponses
from stratos_gateway.background.runs import BackgroundRuns
from stratos_gateway.batches.calls import LineCalls
from stratos_gateway.batches.routes import BatchRoutes
from stratos_gateway.batches.runs import BatchRuns
from stratos_gateway.batches.terms import LineStep
from stratos_gateway.choosing.chains import Chains
from stratos_gateway.choosing.chooser import ModelChooser
from stratos_gateway.continuations.returns import TokenReturns
from stratos_gateway.continuations.step import ContinuationStep
from stratos_gateway.embedding.preparation import EmbeddingPreparer
from stratos_gateway.embedding.source import VectorSender, VectorSource
from stratos_gateway.files.routes import FileRoutes
from stratos_gateway.generation.source import WorkersSource
from stratos_gateway.http.exchange import TraceSampling
from stratos_gateway.ledger.step import AccountStep, BudgetStep, has_none
from stratos_gateway.limits.limiter import TenantLimiter
from stratos_gateway.limits.step import LimitsStep
from stratos_gateway.models.catalogue import ModelCatalogue
from stratos_gateway.models.watermark_policy import read_policy
from stratos_gateway.moderation.route import ModerationPreparer, ModerationSource
from stratos_gateway.observe.request_book import RequestBook
from stratos_gateway.observe.step import MetricsStep
from stratos_gateway.overflow.client import OverflowClient
from stratos_gateway.overflow.source import ExternalSource
from stratos_gateway.parts import GatewayParts
from stratos_gateway.policies.classifier import Classifier, HttpClassifier, NoClassifier
from stratos_gateway.policies.prompts import PromptRenderer
from stratos_gateway.policies.step import InputStep, PolicyStep
from stratos_gateway.preparation.dialects import DIALECTS, ERROR_FORMS, RESPONSE
from stratos_gateway.preparation.generation import GenerationPreparer, PreparationTools
from stratos_gateway.preparation.kv_keys import kv_keys
from stratos_gateway.receipts.step import ReceiptStep
from stratos_gateway.replays.once import KeptAnswers
from stratos_gateway.replays.step import KeptSender, KeptStep
from stratos_gateway.response_cache.cache import ResponseCache
from stratos_gateway.response_cache.source import CacheSource
from stratos_gateway.responses.state import Responses
from stratos_gateway.rollouts.step import RolloutStep
from stratos_gateway.routes.health import DeepHealth
from stratos_gateway.routes.receipt import ReceiptRoute
from stratos_gateway.routes.responses import ResponseRoutes
from stratos_gateway.routes.table import build_routes
from stratos_gateway.routes.usage import UsageRoute
from stratos_gateway.scoring.dialects import SCORING_DIALECTS
from stratos_gateway.scoring.sending import ScoreSender
from stratos_gateway.sockets.route import SocketRoute
from stratos_gateway.streams.desk import StreamDesk
from stratos_gateway.streams.join import StreamJoin
from stratos_gateway.streams.routes import BegunAnswers, RecordedStreams, StreamResume
from stratos_gateway.streams.step import RecordedSource, StreamStep
from stratos_gateway.tokenization.endpoints import ready_endpoints, tokenizer_info
from stratos_gateway.tokenization.preparation import TokenCounting
from stratos_gateway.tokenization.source import ReadySender

NOT_RESIDENT = "the classifier is not of this platform, which texts of this tenant never leave"


def steps(parts: GatewayParts) -> list[Step]:
    """Steps around every request that computes, the outermost first."""
    clock = parts.surroundings.clock
    receipts = None if parts.billing is None else parts.billing.receipts
    limiter = TenantLimiter(parts.leaser, clock)
    billing, redemptions, streams = parts.billing, parts.backends.redemptions, parts.backends.streams
    has_output = has_none if streams is None else BegunAnswers(streams).has_output
    classifier = _open_classifier(parts)
    resident = classifier if parts.settings.policies.classifier_is_resident else NoClassifier(NOT_RESIDENT)
    return [
        *([] if receipts is None else [ReceiptStep(receipts, clock)]),
        PolicyStep(parts.backends.content, classifier, resident, parts.metrics),
        *([] if billing is None else [BudgetStep(billing.budgets, has_output)]),
        LimitsStep(limiter),
        InputStep(),
        MetricsStep(parts.metrics, parts.recent_load, parts.backends.note_tokens),
        *([] if (evidence := parts.backends.rollouts) is None else [RolloutStep(evidence)]),
        *([] if billing is None else [AccountStep(billing.meter)]),
        *([] if parts.streams is None else [StreamStep(_stream_join(parts, parts.streams))]),
        *([] if redemptions is None else [ContinuationStep(redemptions, parts.backends.unix_s, parts.metrics)]),
        LineStep(),
    ]


def generation_sources(parts: GatewayParts) -> list[Source[ChunkOutput]]:
    """Sources of a generation's answer, tried in order; the last one always answers."""
    cache, external = _open_cache(parts), _open_external(parts)
    fleet, admission = parts.fleet, parts.admission
    shared, hashes = parts.backends.shared_answers, fleet.prefix_hashes
    kept: list[Source[ChunkOutput]] = [] if cache is None else [CacheSource(cache, shared, hashes)]
    elsewhere: list[Source[ChunkOutput]] = []
    if external is not None:
        elsewhere = [WorkersSource(fleet, admission, external.patience), external]
    return [RecordedSource(), *kept, *elsewhere, WorkersSource(fleet, admission)]


def _stream_join(parts: GatewayParts, desk: StreamDesk) -> StreamJoin:
    workers = WorkersSource(parts.fleet, parts.admission)
    streams, unix_s = parts.settings.streams, parts.backends.unix_s
    return StreamJoin(desk, workers, streams, parts.metrics, parts.queued.set, unix_s)


def preparation_tools(parts: GatewayParts, catalogue: ModelCatalogue, kept: Responses) -> PreparationTools:
    """Tools that all generation routes prepare with."""
    settings = parts.settings
    return PreparationTools(
        catalogue=catalogue,
        prompts=PromptRenderer(parts.backends.content),
        watermarks=read_policy(settings.watermark),
        responses=kept,
        wall_clock=parts.backends.unix_s,
        is_metered=parts.billing is not None,
        continuations=parts.backends.continuations,
        kv_key=kv_keys(parts.backends.sub_key),
        tenant_label=parts.metrics.tenants.label_of,
    )


def build_endpoints(parts: GatewayParts, edge: Edge, tools: PreparationTools) -> dict[str, ASGIApp]:
    """Routes that compute, by path."""
    settings, catalogue = parts.settings, tools.catalogue
    settle = None if parts.billing is None else parts.billing.writer.settle
    around, sources, sender = steps(parts), generation_sources(parts), ChunkSender(settings.http)
    vectors = VectorSource(
        parts.fleet, parts.admission, parts.embeddings, settings.requests.embedding_timeout_s, settle
    )
    embedding = EmbeddingPreparer(catalogue, parts.metrics.tenants.label_of, parts.backends.unix_s)
    streams = parts.backends.streams
    begun = no_record if streams is None else BegunAnswers(streams)
    chooser = ModelChooser(parts.backends.choices, catalogue.resolve, parts.backends.choice_affinity)
    chains = Chains(catalogue.resolve, chooser, parts.metrics)
    scores, workers = KeptSender(ScoreSender(parts.fleet)), sources[-1:]
    kept = kept_answers(parts)
    keyed = [KeptStep(kept) if kept is not None and isinstance(step, StreamStep) else step for step in around]
    recorded = RecordedSource()
    verdicts = ModerationSource(parts.admission, parts.surroundings.clock)
    endpoint = partial(Endpoint, edge, has_revisions=lambda: parts.models.has_choice)
    return {
        **{d.path: endpoint(GenerationPreparer(tools, d), around, sources, sender, begun, chains) for d in DIALECTS},
        **{
            d.path: endpoint(GenerationPreparer(tools, d), keyed, [recorded, *workers], scores)
            for d in SCORING_DIALECTS
        },
        "/v1/embeddings": endpoint(embedding, keyed, [recorded, vectors], KeptSender(VectorSender())),
        "/v1/moderations": Endpoint(edge, ModerationPreparer(), keyed, [recorded, verdicts], KeptSender(ReadySender())),
        **ready_endpoints(edge, around, TokenCounting(catalogue=catalogue)),
    }


def kept_answers(parts: GatewayParts) -> KeptAnswers | None:
    """Answers of one message that a key gives again, beside the records of streams."""
    store = parts.backends.streams
    return None if store is None else KeptAnswers(store, parts.settings.streams)


def build_edge(parts: GatewayParts) -> Edge:
    """Keys and places, for all routes."""
    return Edge(
        authenticator=parts.backends.authenticator,
        admission=parts.admission,
        bodies=parts.bodies,
        limits=parts.settings.http,
        clock=parts.surroundings.clock,
    )


@dataclass(frozen=True, slots=True)
class BuiltGateway:
    """The application with all its routes, and what runs beside it."""

    app: GatewayApp
    background: BackgroundRuns | None
    batches: BatchRuns | None
    calls: LineCalls
    """Answers lines of batches."""


def build_gateway(
    parts: GatewayParts, edge: Edge, book: RequestBook, not_ready_reason: Callable[[], str]
) -> BuiltGateway:
    """Put the parts together."""
    settings, backends = parts.settings, parts.backends
    sources = backends.adapters, backends.blocks, backends.model_arrivals, backends.aliases
    catalogue = ModelCatalogue(parts.models, *sources, Random(), backends.choices)
    kept = Responses(backends.responses, by_default=settings.responses.store_by_default)
    tools = preparation_tools(parts, catalogue, kept)
    endpoints = build_endpoints(parts, edge, tools)
    recorded = {d.path: found for d in DIALECTS if isinstance(found := endpoints[d.path], Endpoint)}
    streams = RecordedStreams(edge.authenticate, backends.streams)
    resume = StreamResume(streams, recorded)
    responses = None
    if backends.streams is not None:
        preparer = GenerationPreparer(tools, RESPONSE)
        responses = BackgroundResponses(backends.streams, preparer)
    routes = build_routes(
        endpoints=endpoints,
        cancel_stream=streams.cancel,
        resume_stream=resume,
        files=FileRoutes(edge, backends.files, settings.files, kept_answers(parts)),
        batches=BatchRoutes(edge, backends.batches, catalogue, settings.batches),
        authenticate=edge.authenticate,
        usage=UsageRoute(edge.authenticate, parts.billing),
        receipt=ReceiptRoute(edge.authenticate, parts.billing),
        responses=ResponseRoutes(edge.authenticate, kept, responses, resume),
        sockets=SocketRoute(edge, lambda: app, settings.sockets, parts.metrics.sockets.set),
        catalogue=catalogue,
        health=DeepHealth(parts.models, parts.fleet, parts.embeddings, settings.health),
        not_ready_reason=not_ready_reason,
        tokenizer=partial(tokenizer_info, catalogue),
    )
    sampling = TraceSampling(settings.trace_sample_ratio, settings.trace_sampled_by_clients)
    tracing, origins = parts.surroundings.tracing, settings.edge.cors_origins
    app, background = GatewayApp(routes, book, Random(), tracing, sampling, origins, ERROR_FORMS), None
    if backends.streams is not None and backends.recall is not None:
        returns = None
        if backends.continuations is not None and backends.redemptions is not None:
            returns = TokenReturns(backends.continuations, backends.redemptions)
        background = BackgroundRuns(
            backends.streams,
            backends.recall,
            recorded,
            app.exchanges,
            settings.streams,
            parts.queued,
            returns,
            backends.unix_s,
        )
    lines = {path: found for path, found in endpoints.items() if isinstance(found, Endpoint)}
    billed = None if parts.billing is None else parts.billing.writer.caught_up
    calls = LineCalls(lines, app.exchanges, ERROR_FORMS, billed)
    return BuiltGateway(app, background, batch_runs(parts, calls), calls)


def batch_runs(parts: GatewayParts, calls: LineCalls) -> BatchRuns | None:
    """Computes batches; ``None`` where there are none."""
    backends, settings = parts.backends, parts.settings
    if backends.batches is None or backends.recall is None:
        return None
    clock = parts.surroundings.clock
    return BatchRuns(
        backends.batches,
        backends.recall,
        calls,
        settings.batches,
        settings.files.kept_s,
        clock,
        parts.metrics,
        parts.recent_load.note_backlog,
        parts.recent_load.client_age_s,
    )


def _open_classifier(parts: GatewayParts) -> Classifier:
    config = parts.settings.policies
    if not config.classifier_url:
        return NoClassifier()
    classifier = HttpClassifier(config)
    parts.surroundings.stack.push_async_callback(classifier.close)
    return classifier


def _open_cache(parts: GatewayParts) -> ResponseCache | None:
    if parts.billing is None:
        return None
    cache = ResponseCache(parts.surroundings.clock, parts.settings.ledger.response_cache_bytes, parts.metrics)
    parts.backends.on_departure(cache.forget_tenant)
    return cache


def _open_external(parts: GatewayParts) -> ExternalSource | None:
    config = parts.settings.overflow
    if not config.url:
        return None
    clock = parts.surroundings.clock
    client = OverflowClient(config, clock)
    parts.surroundings.stack.push_async_callback(client.close)
    meter = None if parts.billing is None else parts.billing.meter
    return ExternalSource(client, parts.admission, clock, parts.metrics, meter, parts.leaser)
