"""The parts of one gateway: what it calls, and what is opened once and shared by all its requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from stratos.common.clock import Clock
from stratos.common.ids import new_incarnation
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.tracing import Tracing
from stratos.store.counters.choice_affinity import ChoiceAffinity
from stratos.store.counters.redemptions import Redemptions
from stratos.store.sealed.answer_store import SubKey
from stratos.store.sealed.batch_store import BatchStore
from stratos.store.sealed.file_store import FileStore
from stratos_gateway.access.auth import Authenticator, Recall
from stratos_gateway.access.body_places import BodyPlaces
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.admin.routes import AdminStores
from stratos_gateway.choices.source import NO_CHOICES, ChoiceSource
from stratos_gateway.continuations.tokens import ContinuationTokens
from stratos_gateway.embedding.client import EmbeddingClient
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.prompt_names import PrefixHashes, PrefixNames, PromptDigests
from stratos_gateway.generation.recovery import Cause
from stratos_gateway.generation.succession import Succession
from stratos_gateway.ledger.billing import Billing, LedgerAccess
from stratos_gateway.limits.leaser import Leaser
from stratos_gateway.limits.leases import NO_LEASES, Leases
from stratos_gateway.limits.peer_gateways import ExchangeGateways
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.models.adapters import NO_BLOCKS, AdapterSource, Blocks
from stratos_gateway.models.aliases import AliasSource
from stratos_gateway.models.loading import load_models
from stratos_gateway.models.model_set import ModelSet
from stratos_gateway.models.shelf import ModelArrivals, no_arrivals
from stratos_gateway.observe.recent_load import RecentLoad
from stratos_gateway.observe.tenant_series import NoteTokens, nothing_noted
from stratos_gateway.policies.source import NO_CONTENT, ContentSource
from stratos_gateway.response_cache.shared import SharedAnswers
from stratos_gateway.responses.state import SealedResponses
from stratos_gateway.rollouts.drift import Ask
from stratos_gateway.rollouts.evidence import RolloutEvidence
from stratos_gateway.routers.contract import Routers
from stratos_gateway.sessions.pool import SessionPool
from stratos_gateway.sessions.session import WorkerSession
from stratos_gateway.settings import GatewaySettings
from stratos_gateway.streams.desk import SealedStreams, StreamDesk


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The services and stores that the gateway calls."""

    routers: Routers
    adapters: AdapterSource | None
    authenticator: Authenticator
    leases: Leases = NO_LEASES
    """Where the limits of tenants are counted over all gateways."""
    exchange_gateways: ExchangeGateways | None = None
    """Asks other gateways who shares these limits."""
    admin: AdminStores | None = None
    """Stores of the admin API; ``None`` serves none."""
    aliases: AliasSource | None = None
    """Further names of models; ``None`` has none."""
    choices: ChoiceSource = NO_CHOICES
    """Rules of the model ``auto``."""
    choice_affinity: ChoiceAffinity | None = None
    """Remembers which model its sessions have; ``None`` forgets."""
    rollouts: RolloutEvidence | None = None
    """Counts requests for roll-outs; ``None`` counts none."""
    watch_drift: Callable[[Ask], Coroutine[Any, Any, None]] | None = None
    """Root task that measures how far revisions of a roll-out are from each other, by asking workers."""
    blocks: Blocks = NO_BLOCKS
    """Models and adapters that are refused for now."""
    content: ContentSource = NO_CONTENT
    """Content policies and prompt templates."""
    note_tokens: NoteTokens = nothing_noted
    """Finds the largest tenants, which have series of their own."""
    tasks: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]] = field(default_factory=dict)
    """Root tasks that keep them fresh."""
    collectors: Sequence[Collector] = ()
    """Their metrics."""
    ledger: LedgerAccess | None = None
    """Where usage goes; ``None`` bills nothing."""
    shared_answers: SharedAnswers | None = None
    """Kept answers of all gateways; ``None`` shares none."""
    recall: Recall | None = None
    """Finds tenants of what goes on without a client."""
    files: FileStore | None = None
    """Files of tenants; ``None`` keeps none."""
    batches: BatchStore | None = None
    """Batches of tenants; ``None`` keeps none."""
    streams: SealedStreams | None = None
    """Records of streams; ``None`` keeps none."""
    continuations: ContinuationTokens | None = None
    """Makes tokens with which answers go on; ``None`` makes none."""
    sub_key: SubKey = lambda tenant_id, purpose: None
    """A sub-key of a tenant's data key; ``None`` where it has none."""
    redemptions: Redemptions | None = None
    """Who goes on with which; there are some where there are tokens."""
    responses: SealedResponses | None = None
    """Responses that clients come back to; ``None`` keeps none."""
    snapshot_text: Callable[[], Awaitable[bytes]] | None = None
    """A copy of what they know, for other gateways."""
    model_arrivals: ModelArrivals = no_arrivals
    """Waits a moment for a base model, or a revision, that was just added."""
    first_look: Callable[[], Awaitable[None]] | None = None
    """Waits until they were asked once, with or without success."""
    on_change: Callable[[Callable[[], None]], None] = lambda listener: None
    """Takes what is to be called whenever tenants, keys, adapters or blocks have changed."""
    on_departure: Callable[[Callable[[str], None]], None] = lambda listener: None
    """Takes what is to be called with the id of each tenant that was deleted."""
    unix_s: Callable[[], float] = time.time
    """Seconds since the epoch by the one clock of all gateways: what one of them dates, another may judge."""
    not_ready_reason: Callable[[], str] = lambda: ""
    """Why no request can be served with what they know; quick, thread-safe."""


OpenBackends = Callable[[GatewaySettings, ModelSet, AsyncExitStack, GatewayMetrics, Dialer], Awaitable[Backends]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that the process gives to a gateway."""

    clock: Clock
    registry: CollectorRegistry
    tracing: Tracing
    dialer: Dialer
    stack: AsyncExitStack
    """Closes what was opened, in reverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """Belongs to the event loop."""

    settings: GatewaySettings
    surroundings: Surroundings
    models: ModelSet
    metrics: GatewayMetrics
    backends: Backends
    billing: Billing | None
    """``None`` where nothing is billed."""
    leaser: Leaser
    sessions: SessionPool
    embeddings: EmbeddingClient
    admission: Admission
    bodies: BodyPlaces
    recent_load: RecentLoad
    streams: StreamDesk | None
    """``None`` where no streams are recorded."""
    queued: asyncio.Event
    """Set when a stream without a client waits."""
    fleet: FleetAccess


async def open_parts(settings: GatewaySettings, open_backends: OpenBackends, around: Surroundings) -> GatewayParts:
    """Read the models' files, connect to what is called.

    Raises:
        InvalidCheckpoint: a model cannot be served.
        BadRequest: another process has the ledger's spool.
    """
    clock, stack = around.clock, around.stack
    models = await load_models(settings.all_models)
    stack.callback(models.close)
    metrics = _open_metrics(settings, models, around.registry)
    backends = await open_backends(settings, models, stack, metrics, around.dialer)
    for collector in backends.collectors:
        around.registry.register(collector)
    billing = None
    if backends.ledger is not None:
        billing = await Billing.open(backends.ledger, settings.ledger, clock, metrics)
        stack.push_async_callback(billing.close)
    meter, connect_s = None if billing is None else billing.meter, settings.sessions.connect_timeout_s
    leaser = Leaser(backends.leases, clock, settings.limits)
    session = partial(
        WorkerSession, clock=clock, config=settings.sessions, dialer=around.dialer, meter=meter, gate=leaser
    )
    sessions = SessionPool(session, clock, connect_s, metrics.sessions.set)
    stack.push_async_callback(sessions.close)
    embeddings = EmbeddingClient(connect_s, clock, around.dialer, leaser)
    stack.push_async_callback(embeddings.close)
    limits = settings.requests
    admission = Admission(limits.max_open, limits.max_open_per_tenant, metrics, leaser)
    backends.on_change(admission.recheck)
    stack.push_async_callback(leaser.leave)
    streams = None
    if backends.streams is not None:
        streams = StreamDesk(backends.streams, clock, settings.streams.flush_s, metrics)
        stack.push_async_callback(streams.close)
    succession = Succession(models.is_superseded)
    models.on_succession(succession.look)
    return GatewayParts(
        queued=asyncio.Event(),
        streams=streams,
        settings=settings,
        surroundings=around,
        models=models,
        metrics=metrics,
        backends=backends,
        billing=billing,
        leaser=leaser,
        sessions=sessions,
        embeddings=embeddings,
        admission=admission,
        bodies=BodyPlaces(limits.max_open_bodies, limits.max_open_bodies_per_tenant, metrics.open_bodies.set),
        recent_load=RecentLoad(new_incarnation(), clock, models.digests),
        fleet=FleetAccess(
            routers=backends.routers,
            prompt_digests=PromptDigests(settings.key_pepper.get_secret_value().encode()),
            sessions=sessions,
            clock=clock,
            metrics=metrics,
            placement_timeout_s=settings.requests.placement_timeout_s,
            takeover_timeout_s=settings.streams.attach_s,
            tracing=around.tracing,
            zone=settings.zone,
            region=settings.region,
            succession=succession,
            prefix_names=PrefixNames(settings.max_block_names),
            prefix_hashes=PrefixHashes(backends.sub_key, settings.ledger.max_prefix_hashes),
        ),
    )


def _open_metrics(settings: GatewaySettings, models: ModelSet, registry: CollectorRegistry) -> GatewayMetrics:
    metrics = GatewayMetrics(registry, models.home.base.name, settings.observe.max_tenant_series)

    def show_models() -> None:
        metrics.show_models((model.base.name, model.base.digest) for model in models.revisions)

    models.on_change(show_models)
    show_models()
    metrics.show_causes(Cause)
    return metrics
