"""A worker process as a ``Service``: opens its resources, keeps them healthy, drains them.

Both roles hold the same resources and serve ``WorkerService`` and ``KvSourceService``; a decode worker faces gateways
with ``DecodeService`` as well, a prefill worker with ``EmbedService``.  So a change of role is a change of composition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc.aio

from stratos.api.kv.v1 import source_pb2, source_pb2_grpc
from stratos.api.worker.v1 import (
    cache_pb2,
    cache_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    embed_pb2,
    embed_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from stratos.common.clock import SystemClock
from stratos.common.errors import Draining, WorkerLost
from stratos.common.ids import new_incarnation
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.step_watch import PROGRESS_INTERVAL_S, StepWatch
from stratos.rpc.serving.service import Service
from stratos.store.settings import ObjectStoreConfig
from stratos.worker.adapter_cache import AdapterStore, open_adapter_store, remove_leftovers
from stratos.worker.cache_servicer import CacheServicer
from stratos.worker.decode.servicer import DecodeServicer
from stratos.worker.drain_gate import DrainGate
from stratos.worker.embed.servicer import EmbedServicer
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.engine_client.factory import make_thread_engine
from stratos.worker.engine_client.own_thread import run_in_own_thread
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.engine_client.warm_up import warm_up_engine
from stratos.worker.handoff.source_servicer import SourceServicer
from stratos.worker.health.prober import Prober, expected_digest
from stratos.worker.health.self_check import SelfCheck
from stratos.worker.model_source import ModelSource
from stratos.worker.settings import WorkerSettings
from stratos.worker.sleep.sleeper import Sleeper
from stratos.worker.sleep.wiring import make_sleeper
from stratos.worker.status import StatusFeed, StatusServicer, StatusVersions
from stratos.worker.wiring import OpenWorker, wire_worker

PROBE_INTERVAL_S = 1.0
SHOW_IDLE_S = 1.0
"""How often an engine that makes no steps shows its gauges."""
FLUSH_S = 1.0
"""Time that handed-back streams get to leave, taken from the drain's own time."""


class WorkerProcess(Service):
    """One worker.

    Args:
        role: what it does.
        settings: of the service.
        make_engine: makes the engine client; called in a thread, may take long.
        make_store: makes the object store.
    """

    def __init__(
        self,
        role: WorkerRole,
        settings: WorkerSettings,
        *,
        make_engine: Callable[[WorkerSettings], EngineClient],
        make_store: Callable[[ObjectStoreConfig | None], AdapterStore],
    ) -> None:
        self.name = f"{role.value}-worker"
        self.role = role
        self.incarnation = new_incarnation()
        self._settings = settings
        self._max_batch_slots = settings.steps.max_batch_slots
        self._make_engine = make_engine
        self._make_store = make_store
        self._clock = SystemClock()
        self._gate = DrainGate()
        self._feed = StatusFeed()
        self._versions = StatusVersions()
        self._watch = StepWatch(self._clock.now())
        self._drain_timeout_s = settings.drain_timeout_s
        self._has_failed = False
        self._opened: OpenWorker | None = None
        self._self_check: SelfCheck | None = None
        self._prober: Prober | None = None
        self._sleeper: Sleeper | None = None
        self._source: ModelSource | None = None
        self._sessions = DecodeServicer(lambda: self.opened.context, lambda: self.opened.table)

    @property
    def opened(self) -> OpenWorker:
        """Parts that ``open`` made."""
        assert self._opened is not None, "open() comes first"
        return self._opened

    @property
    def sleeper(self) -> Sleeper:
        """Sleep of this worker."""
        assert self._sleeper is not None, "open() comes first"
        return self._sleeper

    def me(self) -> WorkerRef:
        """This process, as others know it."""
        return WorkerRef(
            worker_id=self._settings.worker_id, incarnation=self.incarnation, address=self.address, role=self.role
        )

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        source = SourceServicer(lambda: self.opened.context)
        source_pb2_grpc.add_KvSourceServiceServicer_to_server(source, server)
        status = StatusServicer(self._feed, self.status, self.start_drain, self._gate, lambda: self.sleeper)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(status, server)
        cache = CacheServicer(self._feed, lambda: self.opened.context.engine, self.incarnation)
        cache_pb2_grpc.add_CacheServiceServicer_to_server(cache, server)
        files, names = [source_pb2, worker_pb2, cache_pb2], []
        if self.role is WorkerRole.DECODE:
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(self._sessions, server)
            files.append(decode_pb2)
        else:
            embed = EmbedServicer(lambda: self.opened.context, lambda: self.opened.embedder)
            embed_pb2_grpc.add_EmbedServiceServicer_to_server(embed, server)
            files.append(embed_pb2)
        for file in files:
            names += [service.full_name for service in file.DESCRIPTOR.services_by_name.values()]
        return names

    async def open(self) -> None:
        """Fetch and load the model, start the step loop, wire everything."""
        self._source = ModelSource(self._settings, self._clock, self.metrics)
        self._settings = await self._source.open()
        began = self._clock.now()
        engine = await run_in_own_thread(self._make_engine, self._settings)
        await asyncio.to_thread(remove_leftovers, self._settings.adapter_cache.directory)
        store = await asyncio.to_thread(self._make_store, self._settings.object_store)
        await store.open()  # the first adapter under load would hold up every session for as long as that takes
        await engine.start()
        self._source.metrics.load_seconds.labels("load").set(self._clock.now() - began)
        self._opened = wire_worker(
            self._settings,
            engine,
            store,
            self.me,
            self.incarnation,
            registry=self.metrics,
            clock=self._clock,
            gate=self._gate,
            tracing=self.tracing,
            news=self._feed,
            dialer=self.dialer,
        )
        settings, looks = self._settings, asyncio.Lock()
        self._self_check = SelfCheck(
            engine, self._clock, settings.self_check_interval_s, settings.step_stall_timeout_s, looks
        )
        self._sleeper = make_sleeper(
            self.opened,
            self._gate,
            self._clock,
            looks,
            lambda: self._prober,
            self._feed,
            settings.orphan_ttl_s + FLUSH_S,
            is_spare=settings.is_spare,
        )
        if engine.info.can_probe:
            known = await asyncio.to_thread(expected_digest, engine.info)
            metrics = self.opened.context.metrics
            sent = self.opened.context.sent
            self._prober = Prober(
                engine, self._clock, settings.prober, known, metrics, self._leave_convicted, sent.sound_at, looks
            )

    async def warm_up(self) -> None:
        await warm_up_engine(self.opened.context.engine, self._clock, self._settings.steps.token_budget)
        if self._prober is not None:
            await self._prober.look()  # before the first client

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, Any]]:
        tasks = {
            "step loop": self._watch_step_loop(),
            "housekeeping": self._do_housekeeping(),
            "suspect probing": self._probe_suspects(),
            "waking": self._watch_waking(),
        }
        if self._settings.transport.idle_pair_s:
            tasks["idle pairs"] = self._end_idle_pairs()
        if self._self_check is not None and self._settings.self_check_interval_s:
            tasks["self check"] = self._self_check.run()
        if self._prober is not None:
            tasks["prober"] = self._prober.run()
        return tasks

    def not_ready_reason(self) -> str:
        now_s = self._clock.now()
        if self._opened is not None and self._watch.is_stalled(now_s, self._settings.step_stall_timeout_s):
            return f"the engine has work and its step counter has not moved for {self._watch.stalled_s(now_s):.1f} s"
        if self._sleeper is not None and self._sleeper.not_ready_reason:
            return self._sleeper.not_ready_reason
        if self._prober is not None and self._prober.reason:
            return self._prober.reason
        return "" if self._self_check is None else self._self_check.reason(now_s)

    def status(self) -> WorkerStatus:
        """Status of this worker, as routers see it."""
        opened, context, now_s = self.opened, self.opened.context, self._clock.now()
        engine, info = context.engine.status(), context.engine.info
        max_batch_slots = self._max_batch_slots
        intents = opened.table.intents(engine.p90_output_tokens, info.geometry.block_size, max_batch_slots)
        load = replace(
            engine.load,
            num_promised_blocks=engine.num_promised_blocks + intents.num_blocks,
            num_free_batch_slots=max(0, engine.num_free_batch_slots - intents.num_batch_slots),
        )
        host_ratio, disk_ratio = engine.load_ratios
        status = WorkerStatus(
            ref=self.me(),
            engine=load,
            staging=context.transports.ledger(),
            num_handoffs=self._gate.num_handoffs,
            num_orphans=opened.table.num_orphans,
            is_draining=self._gate.is_draining,
            not_ready_reason=self.not_ready_reason() or (f"it is {self.sleeper.state}" if self._gate.is_asleep else ""),
            identity=info.identity,
            resident_adapters=frozenset(engine.resident_adapters),
            block_size=info.geometry.block_size,
            max_num_seqs=max_batch_slots,
            num_routers=self._feed.num_watchers,
            placing_routers=self._feed.placing_routers(now_s),
            features=context.features,
            ttft_s=opened.table.latencies.first_token.value(now_s),
            itl_s=opened.table.latencies.next_token.value(now_s),
            zone=self._settings.zone,
            region=self._settings.region,
            pool=self._settings.pool,
            is_spot=self._settings.is_spot,
            host_load_ratio=host_ratio,
            disk_load_ratio=disk_ratio,
            sleep_state=self.sleeper.state,
        )
        return self._versions.number(status)

    def refuse_new_work(self) -> None:
        """Take no submission and no hand-off from now on."""
        self._gate.is_draining = True
        self.opened.table.is_draining = True
        self._feed.notify()

    def _leave_convicted(self, reason: str) -> None:
        """Take nothing more, hand everything back without KV, recall what was sent; the process stays, to be looked at.

        Its KV on disk goes, as the process after this one would use it.

        It is not draining: who counts workers must take it for one that is out, and not for one that leaves.
        """
        self._gate.is_convicted = self.opened.table.is_draining = True
        self._feed.notify()
        opened, error = self.opened, Draining("this worker computes wrong; resume the request elsewhere")
        opened.table.fail_all(error)
        opened.embedder.fail_all(error)
        opened.context.jobs.fail_all(error)
        opened.context.sent.recall()
        opened.context.engine.distrust()

    def start_drain(self, timeout_s: float | None) -> None:
        """Refuse new work and let the process end."""
        if timeout_s is not None:
            self._drain_timeout_s = timeout_s
        self.refuse_new_work()
        self.request_stop()

    async def drain(self) -> None:
        """Hand streams back to their gateways, give successors their KV, and let what is sent or embedded end."""
        self.refuse_new_work()
        opened, left_s = self.opened, min(self._drain_timeout_s, self._settings.drain_timeout_s)
        if self._has_failed:
            lost = WorkerLost("this worker's engine failed; resume the request elsewhere")
            opened.table.fail_all(lost)
            opened.embedder.fail_all(lost)
        try:
            async with asyncio.timeout(max(left_s - FLUSH_S, left_s / 2)):
                await self._hand_back()
                await opened.table.wait_empty()
                await self._gate.wait_sources_done()
        except TimeoutError:
            num_streams, _ = opened.table.hand_back()
            self._gate.note_handed_back(num_streams, ())  # it does not stay for successors
            opened.embedder.fail_all(Draining("this worker is leaving; resume the request elsewhere"))
        if not self._has_failed:  # else nothing of the report is true, and who waits for it loses the connection
            self._gate.is_drained.set()
        await opened.table.usage.wait_settled()
        await self._sessions.close_sessions()

    async def _hand_back(self) -> None:
        """Give streams back once their own time is over, and stay for their successors, which come for the KV."""
        table, settings = self.opened.table, self._settings
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.hand_back_after_s):
                await table.wait_empty()
        self._gate.note_handed_back(*table.hand_back())
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.successor_wait_s):
                await self._gate.wait_fetched()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
        if self._source is not None:
            self._source.close()

    # -- inside ------------------------------------------------------------------------------------

    async def _watch_step_loop(self) -> None:
        try:
            await self.opened.context.engine.wait_failed()
        except Exception:
            self._has_failed = True  # the process ends with what is raised; until then nothing waits for the engine
            raise

    async def _watch_waking(self) -> None:
        try:
            await self.sleeper.wait_failed()
        except Exception:
            self._has_failed = True  # the engine has no weights
            raise

    async def _do_housekeeping(self) -> None:
        table, context, was = self.opened.table, self.opened.context, (-1, -1, -1)
        shown_step, next_show = -1, 0.0
        geometry = context.engine.info.geometry
        block_bytes = geometry.token_bytes * geometry.block_size
        while True:
            status = context.engine.status()
            self._watch.observe(
                status.step, self._clock.now(), is_computing=status.is_computing, slow_step_s=status.slow_step_s
            )
            if status.step != shown_step or self._clock.now() >= next_show:  # an idle engine has little to tell
                shown_step, next_show = status.step, self._clock.now() + SHOW_IDLE_S
                context.metrics.observe_status(status, context.transports.ledger(), block_bytes)
                context.metrics.observe_usage(len(table.usage), self.opened.device_time)
                self.opened.meters.show(status, self._clock.now())
            table.reap()
            now = (len(table), table.num_orphans, self._gate.num_handoffs)
            if now != was:
                was = now
                self._feed.notify()
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    async def _end_idle_pairs(self) -> None:
        while True:
            await asyncio.sleep(self._settings.transport.idle_pair_s)
            self.opened.context.transports.end_idle()

    async def _probe_suspects(self) -> None:
        while True:
            await self.opened.context.peers.probe()
            await asyncio.sleep(PROBE_INTERVAL_S)


def make_client(settings: WorkerSettings) -> EngineClient:
    """The engine client that the settings name; a process of its own makes its engine in ``start``."""
    if settings.has_engine_process:
        return ProcessEngine(settings.model_dump_json().encode())
    return make_thread_engine(settings)


def worker_service(role: WorkerRole, settings: WorkerSettings) -> WorkerProcess:
    """The service that both ``__main__`` files serve."""
    return WorkerProcess(
        role,
        settings,
        make_engine=make_client,
        make_store=open_adapter_store,
    )
