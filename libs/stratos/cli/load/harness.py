"""One run, from flags to report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos.cli.load.client.health import allow_sockets
from stratos.cli.load.client.http_sender import HttpSender
from stratos.cli.load.client.run import LoadProgress, run_plan
from stratos.cli.load.measured import LoadResult
from stratos.cli.load.options import LoadOptions, run_plan_of
from stratos.cli.load.report.bench_json import details_json, report_json
from stratos.cli.load.report.summary import LoadReport, load_report
from stratos.common.errors import DependencyDown


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeasurement:
    """A run, its figures, and the conditions that they belong to."""

    arrivals: str
    result: LoadResult
    report: LoadReport
    conditions: Mapping[str, Any]

    def as_json(self, *, has_details: bool = False) -> dict[str, Any]:
        """The document of a run; with details it has every request."""
        content = report_json(self.report, self.conditions)
        return content | (details_json(self.result) if has_details else {})


async def measure_load(
    options: LoadOptions, base_url: str, arrivals: str, progress: LoadProgress | None = None
) -> LoadMeasurement:
    """Send a load and sum it up.

    Args:
        options: what is sent.
        base_url: up to and including ``/v1``.
        arrivals: one ``--arrivals``.
        progress: is counted up.

    Raises:
        BadRequest: a flag makes no sense.
    """
    plan, target = run_plan_of(options, arrivals), options.target(base_url)
    now, began_unix_s = asyncio.get_running_loop().time, time.time()
    allow_sockets()
    async with HttpSender(target, now) as sender:
        result = await run_plan(plan, sender, progress, now)
    return LoadMeasurement(
        arrivals=arrivals,
        result=result,
        report=load_report(result, options.promise),
        conditions=conditions_of(options, arrivals, began_unix_s),
    )


def check_answered(found: LoadMeasurement, base_url: str) -> LoadMeasurement:
    """The measurement itself; raises ``DependencyDown`` where no request was answered, and says why."""
    if not found.report.all.num_completed:
        why = ", ".join(f"{count} x {reason}" for reason, count in found.report.refusals.items()) or "none was sent"
        raise DependencyDown(f"{base_url} answered no request: {why}")
    return found


def conditions_of(options: LoadOptions, arrivals: str, began_unix_s: float) -> dict[str, Any]:
    """Under the names of ``vllm bench serve`` where it has them; keys of tenants stay out."""
    return {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(began_unix_s)),
        "backend": "openai-chat" if options.api == "chat" else "openai",
        "model_id": ",".join(options.models),
        "arrivals": arrivals,
        "trace_speed": options.trace_speed,
        "most_requests": options.requests or None,
        "most_duration_s": options.duration or None,
        "warm_up": options.warm_up,
        "prompt_tokens": options.prompt_tokens,
        "vocab_size": options.vocab_size,
        "output_tokens": options.output_tokens,
        "ignore_eos": options.ignore_eos,
        "shared_prefixes": options.shared_prefixes,
        "turns": options.turns,
        "think_s": options.think_s,
        "slo": options.slo,
        "seed": options.seed,
    }
