"""Routers and real engines on one clock: how often does a worker refuse what a router placed?

Routers use the real dispatcher; workers the real scheduler and block manager over the fake runner, and
the real sum of their intents.  Statuses, placements and reports of ends take time on their way.  Every placement is a
hand-off: it reserves when its prompt has been computed elsewhere, and ``None`` is what gateways see as Busy.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from stratos.common.clock import FakeClock
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRole
from stratos.core.requests.records import EngineRequest, RequestKey
from stratos.engine.contract.results import StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.routing.bookings import BookingLedger
from stratos.routing.dispatch.dispatcher import DispatchConfig, Dispatcher
from stratos.routing.fleet_state import FleetState, Member
from stratos.routing.settings import AdmissionConfig, BookingConfig, LivenessConfig, QueueConfig
from stratos.worker.decode.intents import sum_intents
from stratos.worker.status import StatusFeed
from tests.support.worlds.engine_driver import make_request as make_engine_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.fleet_samples import make_request, make_status

TICK_S = 0.005
STEP_S = 0.02
STATUS_S = 0.05
BLOCK_SIZE = 4
VOCAB_SIZE = 4096
"""An eighth of the tokens end an output."""
QUEUE = QueueConfig(ttl_s=1e9, recovery_ttl_s=1e9, max_requests=1_000_000)
ADMISSION = AdmissionConfig(max_waiting_per_worker=0)
LIVENESS = LivenessConfig(silent_after_s=1e9, hung_after_s=1e9)


@dataclass
class Replayed:
    """What happened."""

    num_placed: int = 0
    num_finished: int = 0
    num_busy: int = 0
    num_outgrown: int = 0
    """Refusals after running sequences, since the status that was gone by, had outlived the p90 that admission counts.

    No router can foresee those: about one in a hundred replays of 300 arrivals has one.
    """
    busy_by_status: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    """Refusals per router, worker and version of the status that the placement went by."""
    occupancy: list[float] = field(default_factory=list)
    """Share of all batch slots that run, at every status."""


def check(replayed: Replayed, num_routers: int, num_arrivals: int) -> None:
    """Every request has finished, and workers refused no more than the rule of several routers allows."""
    assert replayed.num_finished == num_arrivals
    assert replayed.num_placed == num_arrivals + replayed.num_busy
    # Routers do not see one another within a status: what fits one's part may be lost to a wide request of another.
    assert max(replayed.busy_by_status.values(), default=0) <= 2
    assert sum(count > 1 for count in replayed.busy_by_status.values()) <= max(1, num_arrivals // 1000)
    assert replayed.num_busy <= ((num_routers - 1) * num_arrivals * 0.03 or replayed.num_outgrown)


class ReplayWorker:
    """One decode worker: a real engine, and the requests that it has agreed to."""

    def __init__(self, name: str, clock: FakeClock, *, num_blocks: int, max_num_seqs: int) -> None:
        self.name = name
        runner = FakeRunner(
            FakeConfig(
                num_blocks=num_blocks, block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, eos_token_ids=tuple(range(512))
            )
        )
        config = scheduler_config(max_num_seqs=max_num_seqs, default_output_tokens=8, prefix_cache=False)
        self.engine = EngineCore(runner, config, clock)
        self.intents: dict[RequestKey, EngineRequest] = {}
        self.max_num_seqs = max_num_seqs
        self.feed = StatusFeed()
        self._clock = clock
        self._version = itertools.count(1)
        self._num_grown = 0
        self._grown_by_status: dict[int, int] = {}

    def status(self, num_routers: int) -> WorkerStatus:
        """What ``WorkerProcess.status`` makes of the engine and the intents."""
        engine, version = self.engine.status(), next(self._version)
        self._grown_by_status[version] = self._num_grown
        intents = sum_intents(self.intents.values(), engine.p90_output_tokens, BLOCK_SIZE, self.max_num_seqs)
        return make_status(
            self.name,
            version=version,
            blocks=engine.blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.max_num_seqs,
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            num_promised_blocks=engine.num_promised_blocks + intents.num_blocks,
            num_free_batch_slots=max(0, engine.num_free_batch_slots - intents.num_batch_slots),
            p90_output_tokens=engine.p90_output_tokens,
            num_routers=num_routers,
            placing_routers=self.feed.placing_routers(self._clock.now()),
        )

    def step(self) -> StepResult:
        """One step of the engine; notes where its sequences have taken more than admission counted for them."""
        before = self._num_counted_blocks()
        result = self.engine.step()
        self._num_grown += max(0, self._num_counted_blocks() - before)
        return result

    def has_grown_since(self, version: int) -> bool:
        """Its sequences have taken more than the status of that version counted."""
        return self._num_grown > self._grown_by_status[version]

    def _num_counted_blocks(self) -> int:
        engine = self.engine.status()
        return engine.blocks.allocated + engine.blocks.reserved + engine.num_promised_blocks


class ReplayRouter:
    """One router, with what it knows of the workers."""

    def __init__(self, index: int, workers: Iterable[str], random: Random) -> None:
        self.index = index
        fleet = FleetState(LIVENESS, BookingLedger(BookingConfig()))
        fleet.set_members([Member(name, f"{name}:1", WorkerRole.DECODE) for name in workers])
        self.dispatcher = Dispatcher(fleet, DispatchConfig(queue=QUEUE, admission=ADMISSION), random)


class AdmissionReplay:
    """``num_routers`` routers in front of two workers whose pools are short of blocks and of batch slots in turn."""

    def __init__(self, num_routers: int, *, seed: int = 1, num_workers: int = 2) -> None:
        self.clock = FakeClock()
        self.replayed = Replayed()
        self.random = Random(seed)
        self.workers = {
            f"w{i}": ReplayWorker(f"w{i}", self.clock, num_blocks=120, max_num_seqs=12) for i in range(num_workers)
        }
        self.routers = [ReplayRouter(index, self.workers, Random(seed + index)) for index in range(num_routers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._placed: dict[RequestKey, tuple[ReplayRouter, str]] = {}
        self._is_dirty: set[int] = set()

    def run(self, num_arrivals: int, rate: float) -> Replayed:
        """Let so many requests arrive, ``rate`` a second, and run until all have finished."""
        at = self.clock.now()
        for _ in range(num_arrivals):
            at += self.random.expovariate(rate)
            self._at(at, self._arrive)
        ticks = itertools.count()
        while self.replayed.num_finished < num_arrivals:
            self._tick(next(ticks))
            self.clock.advance(TICK_S)
        return self.replayed

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    def _after(self, least_s: float, most_s: float, action: Callable[[], None]) -> None:
        self._at(self.clock.now() + self.random.uniform(least_s, most_s), action)

    def _tick(self, tick: int) -> None:
        now = self.clock.now()
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()
        for worker in self.workers.values():
            if tick % round(STEP_S / TICK_S) == 0:
                self._step(worker)
            if tick % round(STATUS_S / TICK_S) == 0:
                self._report(worker)
        for index in sorted(self._is_dirty):
            self._dispatch(self.routers[index])
        self._is_dirty.clear()

    def _arrive(self) -> None:
        random = self.random
        num_choices = random.choice([1, 1, 1, 1, 2, 4])
        router = random.choice(self.routers)
        request = make_request(
            f"r{next(self._numbers)}",
            tenant=random.choice("abc"),
            num_prompt_tokens=random.randint(2, 60),
            max_output_tokens_total=num_choices * random.choice([4, 8, 16]),
            num_choices=num_choices,
        )
        self._push(router, request)

    def _push(self, router: ReplayRouter, request: PlacementRequest) -> None:
        router.dispatcher.push(request, self.clock.now())
        self._is_dirty.add(router.index)

    def _dispatch(self, router: ReplayRouter) -> None:
        for ticket, placement in router.dispatcher.turn(self.clock.now()):
            assert isinstance(placement, Placement), placement
            self.replayed.num_placed += 1
            self._after(0.001, 0.02, lambda r=ticket.request, p=placement: self._submit(router, r, p))  # type: ignore[misc]

    def _submit(self, router: ReplayRouter, request: PlacementRequest, placement: Placement) -> None:
        worker = self.workers[placement.worker.worker_id]
        per_choice = request.max_output_tokens_total // request.num_choices
        prompt = [self.random.randrange(VOCAB_SIZE) for _ in range(request.num_prompt_tokens)]
        engine_request = make_engine_request(prompt, "", request.num_choices, max_tokens=per_choice)
        engine_request = replace(engine_request, key=RequestKey(request.request_id, request.attempt))
        worker.intents[engine_request.key] = engine_request
        worker.feed.note_placement(request.terms.tenant, placement.handoff_id, self.clock.now())
        self._after(0.0, 0.15, lambda: self._reserve(router, worker, engine_request, request, placement))

    def _reserve(
        self,
        router: ReplayRouter,
        worker: ReplayWorker,
        engine_request: EngineRequest,
        request: PlacementRequest,
        placement: Placement,
    ) -> None:
        key, version = engine_request.key, placement.status_version
        del worker.intents[key]
        if worker.engine.reserve(engine_request) is not None:
            worker.engine.commit(key)
            self._placed[key] = router, placement.handoff_id
            return
        self.replayed.num_busy += 1
        self.replayed.num_outgrown += worker.has_grown_since(version)
        self.replayed.busy_by_status[router.index, worker.name, version] += 1
        refusals = {**request.refusals, placement.worker.incarnation: version}
        again = replace(request, attempt=request.attempt + 1, is_move=True, refusals=refusals)

        def report() -> None:
            router.dispatcher.complete(placement.handoff_id, Outcome.FAILED, 0, self.clock.now())
            self._push(router, again)

        self._after(0.001, 0.01, report)

    def _step(self, worker: ReplayWorker) -> None:
        if not worker.engine.has_work:
            return
        result = worker.step()
        # In the order of the outputs: that of a set would draw other delays in every process.
        for key in dict.fromkeys(output.key for output in result.outputs):
            if key in self._placed and key not in worker.engine.inspect().open_requests:
                router, handoff_id = self._placed.pop(key)
                self._after(0.001, 0.015, lambda r=router, h=handoff_id: self._ended(r, h))  # type: ignore[misc]

    def _ended(self, router: ReplayRouter, handoff_id: str) -> None:
        self.replayed.num_finished += 1
        router.dispatcher.complete(handoff_id, Outcome.FINISHED, None, self.clock.now())
        self._is_dirty.add(router.index)

    def _report(self, worker: ReplayWorker) -> None:
        status = worker.status(len(self.routers))
        self.replayed.occupancy.append(status.engine.num_running / status.max_num_seqs)
        for router in self.routers:
            self._after(0.0, 0.004, lambda r=router: self._hear(r, status))  # type: ignore[misc]

    def _hear(self, router: ReplayRouter, status: WorkerStatus) -> None:
        router.dispatcher.on_status(status.ref.worker_id, status, self.clock.now())
        self._is_dirty.add(router.index)
