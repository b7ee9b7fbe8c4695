"""CPU time of a router's own work: statuses, placements and ends of a large fleet, on a clock that is stepped.

    python -m scripts.bench.router --seconds 60 --out benchmarks/results/router-2core-cpu.json

Workers report at the rate of real ones that compute, requests arrive evenly and run for 2 to 6 seconds.  Decoding of
status messages is part of it; sockets and gRPC are not.  Cores: CPU seconds of the thread per second of the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import time
from dataclasses import replace
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from scripts.bench.harness import flag, quantile, run_bench
from stratos.common.clock import FakeClock
from stratos.core.engine_load import EngineLoad
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.core.requests.terms import RequestTerms
from stratos.core.rules.admission import KV_WATERMARK
from stratos.routing.fleet_state import Member
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings

TICK_S = 0.005
STATUS_S = 0.05
IDENTITY = KvIdentity(model_digest="ab" * 32, kv_dtype="bfloat16", rope_variant="r", numerics_id="n")
NUM_BLOCKS, MAX_NUM_SEQS = 10_000, 64


class Fleet:
    """A router without sockets, and what its workers run."""

    def __init__(self, num_decode: int, num_prefill: int) -> None:
        self.clock, self.random = FakeClock(), Random(1)
        settings = RouterSettings(discovery="static://decode@a:1")
        metrics = RouterMetrics(CollectorRegistry())
        dispatcher = make_dispatcher(settings, metrics, Random(1))
        self.fleet = dispatcher.fleet
        self.scheduler = PlacementLoop(dispatcher, metrics, self.clock)
        roles = [WorkerRole.DECODE] * num_decode + [WorkerRole.PREFILL] * num_prefill
        self.members = [Member(f"{role}-{i}", f"h{i}:1", role) for i, role in enumerate(roles)]
        self.fleet.set_members(self.members)
        self.running = dict.fromkeys((member.worker_id for member in self.members), 0)
        self.statuses = {member.worker_id: self._status(member) for member in self.members}
        self.cpu = {"statuses": 0.0, "turns": 0.0, "ends": 0.0}
        self.decisions_s: list[float] = []
        self._step = 0

    @staticmethod
    def _status(member: Member) -> WorkerStatus:
        ref = WorkerRef(worker_id=member.worker_id, incarnation=member.worker_id, address="", role=member.role)
        blocks = BlockLedger(total=NUM_BLOCKS, free=NUM_BLOCKS, cached=0, allocated=0, reserved=0, fenced=0)
        engine = EngineLoad(
            step=0,
            is_computing=False,
            blocks=blocks,
            num_waiting=0,
            num_running=0,
            num_queued_tokens=0,
            num_free_batch_slots=0,
            num_promised_blocks=0,
            p90_output_tokens=256,
            kv_watermark=KV_WATERMARK,
            num_free_adapter_slots=0,
        )
        return WorkerStatus(ref=ref, engine=engine, identity=IDENTITY, max_num_seqs=MAX_NUM_SEQS)

    def report(self, worker_id: str) -> None:
        """One status arrives, as bytes."""
        num_running, self._step = self.running[worker_id], self._step + 1
        allocated = min(NUM_BLOCKS, num_running * 20)
        last = self.statuses[worker_id]
        blocks = replace(last.engine.blocks, free=NUM_BLOCKS - allocated, allocated=allocated)
        engine = replace(
            last.engine,
            step=self._step,
            is_computing=True,
            num_running=num_running,
            num_free_batch_slots=max(0, MAX_NUM_SEQS - num_running),
            blocks=blocks,
        )
        status = replace(last, engine=engine, version=last.version + 1)
        self.statuses[worker_id] = status
        data = WORKER_STATUS.to_pb(status).SerializeToString()
        message = type(WORKER_STATUS.to_pb(last))
        with self.counted("statuses"):
            self.scheduler.on_status(worker_id, WORKER_STATUS.from_pb(message.FromString(data)))

    def turn(self, num_arrived: int) -> None:
        """Run one turn of a router that was woken; each request that came is one decision."""
        began_s = time.thread_time()
        self.scheduler.turn(self.clock.now())
        spent_s = time.thread_time() - began_s
        self.cpu["turns"] += spent_s
        self.decisions_s += [spent_s / num_arrived for _ in range(num_arrived)]

    def counted(self, name: str) -> Any:
        """Adds the CPU time of a block."""
        return _Counted(self.cpu, name)


class _Counted:
    def __init__(self, cpu: dict[str, float], name: str) -> None:
        self._cpu, self._name, self._began = cpu, name, 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._cpu[self._name] += time.thread_time() - self._began


async def measure(fleet: Fleet, seconds: float, rate: float) -> dict[str, Any]:
    """Run the fleet for so long; returns cores and the distribution of decisions."""
    ends: list[tuple[float, int, Placement]] = []
    calls: list[asyncio.Task[Placement]] = []
    numbers, per_tick, due = itertools.count(), rate * TICK_S, 0.0
    wall_s = time.monotonic()
    for tick in range(round(seconds / TICK_S)):
        for index, member in enumerate(fleet.members):
            if (tick + index) % round(STATUS_S / TICK_S) == 0:
                fleet.report(member.worker_id)
        due += per_tick
        num_arrived, due = int(due), due - int(due)
        for _ in range(num_arrived):
            terms = RequestTerms(tenant=f"t{fleet.random.randrange(100)}", arrival_s=fleet.clock.now())
            request = PlacementRequest(
                request_id=f"r{next(numbers)}",
                terms=terms,
                model_digest=IDENTITY.model_digest,
                num_prompt_tokens=256,
                max_output_tokens_total=64,
            )
            calls.append(asyncio.create_task(fleet.scheduler.schedule(request)))
        await asyncio.sleep(0)
        fleet.turn(num_arrived)
        for _ in range(3):
            await asyncio.sleep(0)
        now = fleet.clock.now()
        for call in [call for call in calls if call.done()]:
            placement = call.result()
            fleet.running[placement.worker.worker_id] += 1
            heapq.heappush(ends, (now + fleet.random.uniform(2.0, 6.0), next(numbers), placement))
        calls = [call for call in calls if not call.done()]
        while ends and ends[0][0] <= now:
            placement = heapq.heappop(ends)[2]
            fleet.running[placement.worker.worker_id] -= 1
            with fleet.counted("ends"):
                fleet.scheduler.complete(placement.handoff_id, Outcome.FINISHED, 64)
        fleet.clock.advance(TICK_S)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return {
        "seconds": seconds,
        "wall_s": round(time.monotonic() - wall_s, 1),
        "requests_per_s": rate,
        "num_waiting_at_end": len(calls),
        "cores": {name: round(cpu_s / seconds, 3) for name, cpu_s in fleet.cpu.items()},
        "decision_cpu_ms": {f"p{q}": round(1000 * quantile(fleet.decisions_s, q / 100), 3) for q in (50, 99)},
    }


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Cores of a router with a fleet of this size."""
    result = asyncio.run(measure(Fleet(args.decode, args.prefill), args.seconds, args.rate))
    return result | {"decode_workers": args.decode, "prefill_workers": args.prefill}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--seconds", type=float, default=60.0),
        flag("--rate", type=float, default=500.0),
        flag("--decode", type=int, default=100),
        flag("--prefill", type=int, default=50),
    )
