"""Gateways' generations over one real router's scheduler and simulated workers, some requests of which kill them.

Time is a fake clock, a step of all workers takes ``STEP_S`` of it.  The generations, their attempts, suspicion, the
router's queue, isolation and convictions are the real ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from stratos.common.clock import FakeClock
from stratos.common.errors import WorkerLost
from stratos.core.gateway_load import GatewayLoad
from stratos.core.generation import Submission
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.core.requests.convictions import Conviction, ConvictionConfig, ConvictionTable, ConvictionUpdate
from stratos.core.requests.records import NO_CHOICES, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.routing.fleet_state import Member
from stratos_gateway.answering.spec import GenerationSpec
from stratos_gateway.generation.fleet_access import FleetAccess
from stratos_gateway.generation.generation import Generation
from stratos_gateway.generation.journal import ChoiceJournal
from stratos_gateway.generation.prompt_names import PromptDigests
from stratos_gateway.metrics import GatewayMetrics
from stratos_gateway.sessions.sink import AttemptSink
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings
from tests.support.fakes.gateway_fakes import PlainText, output
from tests.support.worlds.fleet_samples import MODEL, make_status
from tests.support.worlds.terms import make_terms

STEP_S = 0.05
PREFILL_STEPS = 2
"""Steps until a prompt's first token."""
ROUNDS, TURNS = 3, 4
"""Rounds of the router per step, and turns of the event loop after each, enough to ask for the next placement."""


@dataclass
class _Running:
    submission: Submission
    sink: AttemptSink
    age: int = 0
    num_tokens: int = 0


@dataclass
class SimWorker:
    """One worker address; a dead process has a successor after ``restart_steps``."""

    name: str
    restart_steps: int
    num_deaths: int = 0
    down_steps: int = 0
    step: int = 0
    running: dict[RequestKey, _Running] = field(default_factory=dict)

    @property
    def ref(self) -> WorkerRef:
        return WorkerRef(
            worker_id=self.name, incarnation=f"{self.name}#{self.num_deaths}", address="", role=WorkerRole.DECODE
        )

    def has_settled(self, num_steps: int) -> bool:
        """Every request has run for so many steps after the one of its first token."""
        return all(one.age >= PREFILL_STEPS + num_steps for one in self.running.values())

    def die(self) -> None:
        lost, self.running = list(self.running.values()), {}
        self.num_deaths += 1
        self.down_steps = self.restart_steps
        for one in lost:
            one.sink.on_lost("broken")


@dataclass
class _Session:
    """With one process of a worker."""

    worker: SimWorker
    ref: WorkerRef

    @property
    def step(self) -> int:
        return self.worker.step

    def submit(self, submission: Submission, sink: AttemptSink) -> None:
        if self.ref.incarnation != self.worker.ref.incarnation:
            raise WorkerLost("gone")
        num_before = len(submission.request.choices[0].emitted_ids)
        self.worker.running[submission.request.key] = _Running(submission, sink, num_tokens=num_before)

    def cancel(self, key: RequestKey, choices: Mapping[int, int] = NO_CHOICES) -> None:
        self.worker.running.pop(key, None)

    release = cancel


class PoisonFleet:
    """Workers, a router, and the requests that run on them.

    Args:
        num_workers: decode workers with 8 batch slots each.
        restart_steps: until a dead worker's successor serves.
        crash_step: at which step after its prompt a poison kills its worker; 0 is that of its first token.
        seed: breaks ties.
    """

    def __init__(self, num_workers: int, restart_steps: int, crash_step: int, seed: int) -> None:
        self.clock = FakeClock()
        self._table = ConvictionTable(ConvictionConfig())
        self.workers = [SimWorker(f"decode-{number}", restart_steps) for number in range(num_workers)]
        self.killers: Counter[str] = Counter()
        """Deaths by the request that caused them."""
        self._crash_step = crash_step
        settings = RouterSettings(discovery="static://decode@a:1")
        metrics = RouterMetrics(CollectorRegistry())
        dispatcher = make_dispatcher(settings, metrics, Random(seed))
        self._fleet = dispatcher.fleet
        self._fleet.set_members([Member(worker.name, "a:1", WorkerRole.DECODE) for worker in self.workers])
        self._scheduler = PlacementLoop(dispatcher, metrics, self.clock)
        self._platform = FleetAccess(
            routers=self,
            prompt_digests=PromptDigests(b"secret"),
            sessions=self,  # type: ignore[arg-type]
            clock=self.clock,
            metrics=GatewayMetrics(CollectorRegistry()),
            placement_timeout_s=60.0,
        )

    async def get(self, ref: WorkerRef) -> Any:
        for worker in self.workers:
            if worker.ref.incarnation == ref.incarnation and not worker.down_steps:
                return _Session(worker, ref)
        raise WorkerLost("cannot be reached")

    async def is_back(self, ref: WorkerRef) -> bool:
        return any(worker.ref.incarnation == ref.incarnation for worker in self.workers)

    async def has_moved(self, ref: WorkerRef, step: int) -> bool:
        return await self.is_back(ref)

    async def schedule(self, request: PlacementRequest, *, timeout_s: float | None = None) -> Placement:
        placement = await self._scheduler.schedule(request)
        assert placement.decode is not None
        return placement

    def report(self, placement: Placement, outcome: Outcome, num_output_tokens: int) -> None:
        self._scheduler.complete(placement.handoff_id, outcome, num_output_tokens)

    async def report_load(self, load: GatewayLoad) -> None: ...

    def suspects(self, tenant: str) -> bool:
        return self._table.suspects(tenant, self.clock.now())

    async def convict(self, request: PlacementRequest) -> None:
        poison = Conviction(tenant=request.terms.tenant, prompt_digest=request.prompt_digest, left_s=600.0)
        self._table.add_all((poison,), self.clock.now())
        self._scheduler.exchange_convictions(ConvictionUpdate(convictions=(poison,)))

    def request(self, prompt: int, num_tokens: int) -> Generation:
        """A request that is to be run; a poison has a negative ``prompt``."""
        spec = GenerationSpec(
            terms=make_terms(tenant="t"),
            model_digest=MODEL,
            prompt_ids=(abs(prompt),),
            sampling=SamplingParams(max_tokens=num_tokens),
            seed=prompt,
        )
        journals = [ChoiceJournal(0, PlainText(), PlainText())]  # type: ignore[arg-type]
        return Generation(spec, journals, self._platform, lambda: None)

    async def step(self) -> None:
        """All workers make a step, the router hears of it, and everything that follows happens."""
        self.clock.advance(STEP_S)
        for worker in self.workers:
            if worker.down_steps:
                worker.down_steps -= 1
            else:
                self._compute(worker)
            self._tell_router(worker)
        for _ in range(ROUNDS):
            self._scheduler.turn(self.clock.now())
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _compute(self, worker: SimWorker) -> None:
        worker.step += 1
        for one in list(worker.running.values()):
            request = one.submission.request
            one.age += 1
            is_poison = request.seed < 0
            if is_poison and one.age == PREFILL_STEPS + self._crash_step:
                self.killers[request.key.request_id] += 1
                worker.die()
                return
            if one.age >= PREFILL_STEPS and request.key in worker.running:
                self._emit(worker, one)

    def _emit(self, worker: SimWorker, one: _Running) -> None:
        """The token at each position is its position: an exact stream counts up."""
        request, offset = one.submission.request, one.num_tokens
        one.num_tokens += 1
        is_last = one.num_tokens == request.sampling.max_tokens
        if is_last:
            del worker.running[request.key]
        news = output(request.key, offset, (offset,), FinishReason.LENGTH if is_last else None)
        one.sink.on_output(news, self.clock.now())

    def _tell_router(self, worker: SimWorker) -> None:
        now_s = self.clock.now()
        if worker.down_steps:
            self._fleet.on_lost(worker.name, now_s)
            return
        status = make_status(worker.name, num_running=len(worker.running), step=worker.step, ref=worker.ref)
        self._fleet.on_status(worker.name, status, now_s)
