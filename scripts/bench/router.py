"""CPU time of a router's own work: statuses, placements and ends of a large fleet, on a clock that is stepped.

    python -m scripts.bench.router --seconds 60 --out benchmarks/results/router-2core-cpu.json

Workers report at the rate of real ones that compute, requests run for 2 to 6 seconds.  Decoding of status messages is
part of it; sockets and gRPC are not.  Cores: CPU seconds of the thread per second of the clock.

    room   requests arrive evenly, and there is room for all
    kv     pools are full: each of ``--tenants`` tenants has a request waiting, of any length, and ends let some go

A decision is a request's share of the turn that placed it.  With ``--beside`` another checkout, which has its own
``.venv``, takes turns with this one; figures are medians over the rounds, and ratios those of this one to the other.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from scripts.bench.harness import ROOT, by_turns, flag, run_bench, show
from stratos.common.clock import FakeClock
from stratos.core.engine_load import EngineLoad
from stratos.core.fleet import WorkerStatus
from stratos.core.kv import BlockLedger, KvIdentity
from stratos.core.placement import Outcome, Placement, PlacementRequest, WorkerRef, WorkerRole
from stratos.core.requests.terms import RequestTerms
from stratos.core.rules.admission import KV_WATERMARK
from stratos.core.rules.quantile import percentile
from stratos.routing.fleet_state import Member
from stratos.rpc.codec.fleet import WORKER_STATUS
from stratos_router.metrics import RouterMetrics
from stratos_router.placement_loop import MAX_PLACED, PlacementLoop
from stratos_router.service import make_dispatcher
from stratos_router.settings import RouterSettings

TICK_S = 0.005
STATUS_S = 0.05
IDENTITY = KvIdentity(model_digest="ab" * 32, kv_dtype="bfloat16", rope_variant="r", numerics_id="n")
NUM_BLOCKS, MAX_NUM_SEQS = 10_000, 64
BLOCK_SIZE = 16
WARM_UP_S = 8.0
SMALL_POOL = 2250
"""Blocks in the case kv: about as many requests run as in the other one, and a little more than 500 end in a second."""


class Fleet:
    """A router without sockets, and what its workers run."""

    def __init__(self, num_decode: int, num_prefill: int, num_blocks: int = NUM_BLOCKS) -> None:
        self.clock, self.random = FakeClock(), Random(1)
        settings = RouterSettings(discovery="static://decode@a:1")  # type: ignore[call-arg]  # others have defaults
        metrics = RouterMetrics(CollectorRegistry())
        dispatcher = make_dispatcher(settings, metrics, Random(1))
        self.fleet = dispatcher.fleet
        self.scheduler = PlacementLoop(dispatcher, metrics, self.clock)
        roles = [WorkerRole.DECODE] * num_decode + [WorkerRole.PREFILL] * num_prefill
        self.members = [Member(f"{role}-{i}", f"h{i}:1", role) for i, role in enumerate(roles)]
        self.fleet.set_members(self.members)
        self.num_blocks = num_blocks
        self.running = dict.fromkeys((member.worker_id for member in self.members), 0)
        self.allocated = dict(self.running)
        self.statuses = {member.worker_id: self._status(member) for member in self.members}
        self.cpu = {"statuses": 0.0, "turns": 0.0, "ends": 0.0}
        self.decisions_s: list[float] = []
        self.turns_s: list[float] = []
        self._step = 0

    def _status(self, member: Member) -> WorkerStatus:
        ref = WorkerRef(worker_id=member.worker_id, incarnation=member.worker_id, address="", role=member.role)
        blocks = BlockLedger(total=self.num_blocks, free=self.num_blocks, cached=0, allocated=0, reserved=0, fenced=0)
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
        allocated = min(self.num_blocks, self.allocated[worker_id])
        last = self.statuses[worker_id]
        blocks = replace(last.engine.blocks, free=self.num_blocks - allocated, allocated=allocated)
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

    def turn(self) -> None:
        """Run the turns of a router that was woken, until one leaves nothing to place."""
        while not self._one_turn():
            pass

    def _one_turn(self) -> bool:
        num_booked = len(self.fleet.bookings)
        began_s = time.thread_time()
        is_done = self.scheduler.turn(self.clock.now(), MAX_PLACED)
        spent_s = time.thread_time() - began_s
        self.cpu["turns"] += spent_s
        num_placed = len(self.fleet.bookings) - num_booked
        self.turns_s.append(spent_s)
        self.decisions_s += [spent_s / num_placed for _ in range(num_placed)]
        return is_done

    def restart_figures(self) -> None:
        """The fleet has filled up: figures count from now on."""
        self.cpu = dict.fromkeys(self.cpu, 0.0)
        self.decisions_s.clear()
        self.turns_s.clear()

    def note(self, placement: Placement, request: PlacementRequest, sign: int) -> None:
        """A request runs on its worker, or does so no longer."""
        name, num_tokens = placement.worker.worker_id, request.num_prompt_tokens + request.max_output_tokens_total
        self.running[name] += sign
        self.allocated[name] += sign * (num_tokens // BLOCK_SIZE + 1)

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


class Requests:
    """What tenants ask for: at a rate, or always as many as there are tenants."""

    def __init__(self, rate: float, num_tenants: int, *, is_backlog: bool) -> None:
        self._rate, self._num_tenants, self._is_backlog = rate, num_tenants, is_backlog
        self._numbers, self._due, self._random = itertools.count(), 0.0, Random(2)

    def arriving(self, num_waiting: int, now_s: float) -> list[PlacementRequest]:
        """Requests of one tick."""
        if self._is_backlog:
            return [self._make(now_s) for _ in range(self._num_tenants - num_waiting)]
        self._due += self._rate * TICK_S
        num_arrived, self._due = int(self._due), self._due - int(self._due)
        return [self._make(now_s) for _ in range(num_arrived)]

    def _make(self, now_s: float) -> PlacementRequest:
        number, rng = next(self._numbers), self._random
        return PlacementRequest(
            request_id=f"r{number}",
            terms=RequestTerms(tenant=f"t{number % self._num_tenants}", arrival_s=now_s),
            model_digest=IDENTITY.model_digest,
            num_prompt_tokens=rng.randint(64, 2048) if self._is_backlog else 256,
            max_output_tokens_total=rng.randint(64, 1024) if self._is_backlog else 64,
        )


async def measure(fleet: Fleet, requests: Requests, seconds: float) -> dict[str, Any]:
    """Run the fleet for so long; returns cores and the distribution of decisions."""
    ends: list[tuple[float, int, Placement, PlacementRequest]] = []
    calls: dict[asyncio.Task[Placement], PlacementRequest] = {}
    numbers, wall_s, num_placed = itertools.count(), time.monotonic(), 0
    for tick in range(-round(WARM_UP_S / TICK_S), round(seconds / TICK_S)):
        if tick == 0:
            fleet.restart_figures()
            num_placed = 0
        for index, member in enumerate(fleet.members):
            if (tick + index) % round(STATUS_S / TICK_S) == 0:
                fleet.report(member.worker_id)
        for request in requests.arriving(len(calls), fleet.clock.now()):
            calls[asyncio.create_task(fleet.scheduler.schedule(request))] = request
        await asyncio.sleep(0)
        fleet.turn()
        for _ in range(3):
            await asyncio.sleep(0)
        now = fleet.clock.now()
        for call in [call for call in calls if call.done()]:
            placement, request = call.result(), calls.pop(call)
            num_placed += 1
            fleet.note(placement, request, +1)
            heapq.heappush(ends, (now + fleet.random.uniform(2.0, 6.0), next(numbers), placement, request))
        while ends and ends[0][0] <= now:
            _, _, placement, request = heapq.heappop(ends)
            fleet.note(placement, request, -1)
            with fleet.counted("ends"):
                fleet.scheduler.complete(placement.handoff_id, Outcome.FINISHED, 64)
        fleet.clock.advance(TICK_S)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    return {
        "seconds": seconds,
        "wall_s": round(time.monotonic() - wall_s, 1),
        "requests_per_s": round(num_placed / seconds, 1),
        "num_waiting_at_end": len(calls),
        "cores": {name: round(cpu_s / seconds, 3) for name, cpu_s in fleet.cpu.items()},
        "decision_cpu_ms": _quantiles_ms(fleet.decisions_s),
        "turn_cpu_ms": _quantiles_ms(fleet.turns_s),
    }


def _quantiles_ms(seconds: list[float]) -> dict[str, float]:
    return {f"p{q}": round(1000 * percentile(sorted(seconds), q), 3) for q in (50, 99)}


def measure_cases(args: argparse.Namespace) -> dict[str, Any]:
    """Both cases, by the code of this process."""
    cases = {}
    for name, num_blocks in (("room", NUM_BLOCKS), ("kv", SMALL_POOL)):
        requests = Requests(args.rate, args.tenants, is_backlog=name == "kv")
        fleet = Fleet(args.decode, args.prefill, num_blocks)
        cases[name] = asyncio.run(measure(fleet, requests, args.seconds))
    return cases


def measure_tree(tree: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Both cases, by a checkout in a process of its own."""
    names = ("seconds", "rate", "tenants", "decode", "prefill")
    given = [text for name in names for text in (f"--{name}", str(getattr(args, name)))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [str(tree / ".venv/bin/python"), "-m", "scripts.bench.router", *given, "--out", str(out)]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
        cases: dict[str, Any] = json.loads(out.read_text())["cases"]
    show({"tree": str(tree), "turn p99, ms": {name: case["turn_cpu_ms"]["p99"] for name, case in cases.items()}})
    return cases


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Cores of a router with a fleet of this size, beside those of another checkout."""
    size = {"decode_workers": args.decode, "prefill_workers": args.prefill, "tenants": args.tenants}
    if args.beside is None:
        return {**size, "cases": measure_cases(args)}
    trees = {"this": ROOT, "beside": args.beside}
    runs = by_turns(args.rounds, trees, lambda name, _: measure_tree(trees[name], args))
    cases, beside = (_over(runs[name], statistics.median) for name in trees)
    return {**size, "cases": cases, "beside": beside, "ratios": _over([cases, beside], lambda two: two[0] / two[1])}


def _over(found: list[Any], combine: Callable[[list[float]], float]) -> Any:
    """Documents of one shape combined number by number; ``None`` where a number cannot be."""
    if isinstance(found[0], dict):
        return {name: _over([one[name] for one in found], combine) for name in found[0]}
    return round(combine(found), 3) if all(found) else None


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--beside", type=Path, help="another checkout that takes turns"),
        flag("--rounds", type=int, default=3, help="of each checkout, with --beside"),
        flag("--seconds", type=float, default=60.0),
        flag("--rate", type=float, default=500.0, help="requests per second of the case room"),
        flag("--tenants", type=int, default=500),
        flag("--decode", type=int, default=100),
        flag("--prefill", type=int, default=50),
    )
