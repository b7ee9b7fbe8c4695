#!/usr/bin/env python3
"""Measure what workers without batches bring to other requests, and cost in lines, on a virtual clock.

    python -m scripts.bench.clear_workers --out benchmarks/results/clear-workers-simulated.json

The shipped dispatcher, policy and engine (``stratos.sim``) under simulated steps, so figures do not depend on this
machine and are the same each time.  Lines of a batch fill all slots that they may have; premium requests of one token
come at even times, 20 a second for each two workers.  Their time to the first token beside the batch is divided by that
alone, for each part of the workers that is kept clear (``ADMISSION__CLEAR_RATIO``).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from scripts.bench.harness import flag, run_bench, table
from stratos.core.placement import Placement, PlacementRequest
from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import RequestTerms
from stratos.core.rules.quantile import percentile
from stratos.core.tenancy.plan import BATCH, PREMIUM, Plan
from stratos.engine.contract.results import StepResult
from stratos.engine.settings import SchedulerConfig
from stratos.routing.policy.settings import RoutingPoliciesConfig
from stratos.sim.router import ADMISSION, SimRouter
from stratos.sim.runner import IDENTITY, StepCosts
from stratos.sim.timeline import Timeline
from stratos.sim.worker import SimWorker, WorkerConfig

STEPS = {
    "20 ms, 8 slots": WorkerConfig(
        scheduler=SchedulerConfig(max_num_seqs=8), costs=StepCosts(step_s=0.02, prompt_token_s=0.0, sequence_s=0.0)
    ),
    "8B model, 32 slots": WorkerConfig(),
}
EVERY_S = 0.0503
"""No multiple of a step: requests come at all moments of one."""
WARM_S = 3.0
"""Before premium requests are counted: lines that ran at a worker end there."""
LINE_TOKENS = 8
RATIOS = (0.0, 0.25, 0.5)


@dataclass
class _Call:
    """One request."""

    plan: Plan
    arrived_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    handoff_id: str = ""


@dataclass
class Result:
    """What was seen once it was warm."""

    first_tokens_s: list[float] = field(default_factory=list)
    """Of premium requests."""
    num_lines: int = 0


class BesideFleet:
    """Premium requests beside a batch.

    Args:
        num_workers: of the fleet.
        worker: each of them.
        clear_ratio: part of them without batches.
        num_lines: that are open at any time.
        num_prompt_tokens: of premium requests.
    """

    def __init__(
        self, num_workers: int, worker: WorkerConfig, clear_ratio: float, num_lines: int, num_prompt_tokens: int
    ) -> None:
        self._timeline, self._random = Timeline(), Random(1)
        admission = replace(ADMISSION, clear_ratio=clear_ratio)
        self._router = SimRouter(RoutingPoliciesConfig(), self._timeline, 1, self._on_placed, admission)
        report: Callable[..., None] = self._router.on_report
        self._workers = {
            name: SimWorker(name, worker, self._timeline, self._on_result, report)
            for name in (f"decode-{number}" for number in range(num_workers))
        }
        self._router.set_workers(one.ref for one in self._workers.values())
        self._num_open_lines, self._num_prompt_tokens = num_lines, num_prompt_tokens
        self._calls: dict[str, _Call] = {}
        self._count, self._ends_s = 0, 0.0
        self._result = Result()

    def run(self, seconds: float) -> Result:
        """For so long, once it is warm."""
        self._ends_s = WARM_S + seconds
        for worker in self._workers.values():
            worker.report_status()
        for _ in range(self._num_open_lines):
            self._timeline.at(self._random.uniform(0.0, 0.5), self._ask_line)
        gap_s = 2 * EVERY_S / max(2, len(self._workers))
        for number in range(int(self._ends_s / gap_s)):
            self._timeline.at(number * gap_s, self._ask_premium)
        self._timeline.run()
        return self._result

    def _ask_line(self) -> None:
        if self._timeline.now() < self._ends_s:
            self._ask(BATCH, 2, LINE_TOKENS)

    def _ask_premium(self) -> None:
        self._ask(PREMIUM, self._num_prompt_tokens, 1)

    def _ask(self, plan: Plan, num_prompt_tokens: int, num_output_tokens: int) -> None:
        self._count += 1
        name = f"r{self._count}"
        self._calls[name] = _Call(plan, self._timeline.now(), num_prompt_tokens, num_output_tokens)
        terms = RequestTerms(tenant=plan.name, priority_class=plan.priority_class, share=plan.share())
        self._router.schedule(
            PlacementRequest(
                request_id=name,
                terms=terms,
                model_digest=IDENTITY.model_digest,
                num_prompt_tokens=num_prompt_tokens,
                max_output_tokens_total=num_output_tokens,
            )
        )

    def _on_placed(self, request: PlacementRequest, placement: Placement) -> None:
        call = self._calls[request.request_id]
        call.handoff_id = placement.handoff_id
        number = int(request.request_id[1:])
        self._workers[placement.worker.worker_id].submit(
            EngineRequest(
                key=RequestKey(request.request_id, 0),
                prompt_ids=tuple((number * 31 + place * 7) % 30_000 for place in range(call.num_prompt_tokens)),
                choices=(ChoiceState(index=0),),
                sampling=SamplingParams(temperature=0.0, max_tokens=call.num_output_tokens, ignore_eos=True),
                seed=0,
                terms=RequestTerms(arrival_s=self._timeline.now(), priority_class=call.plan.priority_class),
            )
        )

    def _on_result(self, worker: SimWorker, result: StepResult) -> None:
        for output in result.outputs:
            if output.finish_reason is None:
                continue
            call, now = self._calls.pop(output.key.request_id), self._timeline.now()
            self._router.complete(call.handoff_id, call.num_output_tokens)
            is_counted = WARM_S <= call.arrived_s < self._ends_s
            if not call.plan.is_batch:
                self._result.first_tokens_s += [now - call.arrived_s] if is_counted else []
                continue
            self._result.num_lines += WARM_S <= now < self._ends_s
            self._ask_line()


def compare(num_workers: int, steps: str, args: argparse.Namespace) -> dict[str, Any]:
    """Alone, and beside a batch by ratio."""
    worker = STEPS[steps]
    slots = worker.scheduler.max_num_seqs * num_workers

    def row(ratio: float, num_lines: int) -> dict[str, Any]:
        found = BesideFleet(num_workers, worker, ratio, num_lines, args.prompt).run(args.seconds)
        times = sorted(found.first_tokens_s)
        return {
            **{f"p{q}_ms": round(percentile(times, q) * 1e3, 1) for q in (50, 99)},
            "mean_ms": round(statistics.mean(times) * 1e3, 1),
            "lines_per_s": round(found.num_lines / args.seconds, 1),
        }

    alone, rows = row(0.0, 0), {str(ratio): row(ratio, slots) for ratio in RATIOS}
    for one in rows.values():
        one["p99_ratio"] = round(one["p99_ms"] / alone["p99_ms"], 2)
        one["lines_ratio"] = round(one["lines_per_s"] / rows["0.0"]["lines_per_s"], 2)
    return {"workers": num_workers, "steps": steps, "alone": alone, "beside": rows}


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """All fleets."""
    runs = [compare(num, steps, args) for steps in STEPS for num in args.workers]
    cells = [(run["steps"], str(run["workers"]), *_cells(run["alone"], ratio, one)) for run, ratio, one in _rows(runs)]
    heads = ("steps", "workers", "clear", "alone p50, p99 ms", "beside", "p99 ratio", "lines/s", "of lines")
    return {"seconds": args.seconds, "prompt": args.prompt, "runs": runs, "table": table(heads, cells)}


def _rows(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
    return [(run, ratio, one) for run in runs for ratio, one in run["beside"].items()]


def _cells(alone: dict[str, Any], ratio: str, one: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{row['p50_ms']} and {row['p99_ms']}" for row in (alone, one))
    return ratio, *times, str(one["p99_ratio"]), str(one["lines_per_s"]), str(one["lines_ratio"])


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--seconds", type=float, default=120.0, help="of the virtual clock"),
        flag("--workers", type=int, nargs="+", default=[1, 2, 3, 4, 8, 16]),
        flag("--prompt", type=int, default=8, help="tokens of a premium request"),
    )
