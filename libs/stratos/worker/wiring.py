"""Everything a worker has once it is open, wired together; role only decides which servicers face outwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from stratos.common.clock import Clock
from stratos.core.features import Feature
from stratos.core.placement import WorkerRef
from stratos.engine.contract.results import StepResult
from stratos.kv_transfer.capabilities import find_capabilities
from stratos.kv_transfer.port.slot_queue import SlotQueue
from stratos.kv_transfer.registry import usable_transports, working_transports
from stratos.kv_transfer.settings import TransportConfig
from stratos.rpc.binding import StartError
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.tracing import Tracing
from stratos.worker.adapter_cache import AdapterCache, AdapterStore
from stratos.worker.decode.prefill_policy import PrefillPolicy
from stratos.worker.decode.request_table import RequestTable
from stratos.worker.decode.table_contract import StatusNews
from stratos.worker.decode.usage_log import UsageLog
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.embedder import Embedder
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.device_time import DeviceTime
from stratos.worker.features import offered_features
from stratos.worker.handoff.context import HandoffContext
from stratos.worker.handoff.receiver import HandoffReceiver
from stratos.worker.handoff.source_jobs import PrefillJobs
from stratos.worker.handoff.source_peers import SourcePeers
from stratos.worker.handoff.transports import Transports
from stratos.worker.health.sent_kv import MAX_TOKENS, SentKv
from stratos.worker.kv_loads import KvLoads
from stratos.worker.meters.meters import Meters, open_meters
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWorker:
    """A worker whose engine is open: the context, and what works with it."""

    context: HandoffContext
    receiver: HandoffReceiver
    table: RequestTable
    embedder: Embedder
    device_time: DeviceTime
    meters: Meters

    async def close(self) -> None:
        """Close in reverse order of use."""
        await self.table.close()
        await self.receiver.close()
        await self.context.sent.close()
        await self.context.adapters.close()
        await self.context.peers.close()
        await self.context.transports.close()
        await self.context.engine.close()


def wire_worker(
    settings: WorkerSettings,
    engine: EngineClient,
    store: AdapterStore,
    me: Callable[[], WorkerRef],
    incarnation: str,
    *,
    registry: CollectorRegistry,
    clock: Clock,
    gate: DrainGate,
    tracing: Tracing,
    news: StatusNews,
    dialer: Dialer,
) -> OpenWorker:
    """Build everything around a started engine."""
    context = _context(
        settings,
        engine,
        store,
        me,
        incarnation,
        registry=registry,
        clock=clock,
        gate=gate,
        tracing=tracing,
        dialer=dialer,
    )
    receiver, embedder = HandoffReceiver(context), Embedder(context)
    table = RequestTable(
        engine,
        PrefillPolicy(context, receiver, settings.handoff),
        clock,
        tracing,
        max_requests=settings.scheduler.max_num_seqs + settings.scheduler.max_num_waiting,
        orphan_ttl_s=settings.orphan_ttl_s,
        news=news,
        usage=UsageLog(clock, settings.usage, context.metrics.usage_dropped),
        on_damage=receiver.invalidate,
    )
    device_time = DeviceTime()
    meters = open_meters(
        registry,
        settings.observe,
        engine.info,
        me=me(),
        model=settings.model_label,
        device=settings.device_label,
        environ=os.environ,
    )
    opened = OpenWorker(
        context=context, receiver=receiver, table=table, embedder=embedder, device_time=device_time, meters=meters
    )
    engine.subscribe(partial(_take_step, opened, news))
    return opened


def _take_step(opened: OpenWorker, news: StatusNews, result: StepResult) -> None:
    """Hand a step's result to those for whom it has something: the one subscriber of a worker that stays."""
    if result.shares.legs or result.prefill_events or result.prefill_errors:
        opened.context.jobs.on_step(result)
    opened.table.on_step(result)
    if result.embeddings or result.errors:
        opened.embedder.on_step(result)
    opened.device_time.on_step(result)
    opened.meters.on_step(result)
    news.notify()


def _context(
    settings: WorkerSettings,
    engine: EngineClient,
    store: AdapterStore,
    me: Callable[[], WorkerRef],
    incarnation: str,
    *,
    registry: CollectorRegistry,
    clock: Clock,
    gate: DrainGate,
    tracing: Tracing,
    dialer: Dialer,
) -> HandoffContext:
    metrics = WorkerMetrics(registry, settings.device_label, settings.observe.max_tenant_series)
    geometry = engine.info.geometry
    transport = settings.transport.fitted(geometry.token_bytes, geometry.state_layer_bytes)
    transports = Transports(
        _names(transport, engine, has_tls=dialer.tls is not None),
        engine.data_port,
        incarnation,
        transport,
        find_capabilities(transport.shm_directory, engine.info.device),
    )
    slot_queue = SlotQueue(settings.handoff.slot_wait_s)
    peers = SourcePeers(transports, slot_queue, clock, dialer)
    num_recalled = MAX_TOKENS if engine.info.can_probe and settings.prober.interval_s else 0
    return HandoffContext(
        me=me,
        features=offered_features(me().role, engine.info, _disabled(settings)),
        engine=engine,
        kv_loads=KvLoads(engine, settings.disk_tier, clock, metrics),
        adapters=AdapterCache(store, engine, settings.adapter_cache, metrics),
        gate=gate,
        metrics=metrics,
        clock=clock,
        tracing=tracing,
        transports=transports,
        peers=peers,
        slot_queue=slot_queue,
        jobs=PrefillJobs(),
        sent=SentKv(clock, engine.info.geometry.block_size, peers.invalidate, num_recalled),
        config=settings.handoff,
    )


def _disabled(settings: WorkerSettings) -> frozenset[Feature]:
    """Features that no setting turned on, or one turned off; without a disk no key of a tenant is wanted."""
    return settings.disabled_features | (frozenset() if settings.disk_tier.is_on else {Feature.KV_KEYS})


def _names(config: TransportConfig, engine: EngineClient, *, has_tls: bool) -> tuple[str, ...]:
    try:
        names = usable_transports(config, has_tls=has_tls, has_device_pages=engine.has_device_pages)
        return working_transports(names, engine.data_port.faults)
    except ValueError as error:
        raise StartError(f"TRANSPORT__NAMES: {error}") from None
