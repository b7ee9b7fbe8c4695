"""A report as JSON, with the fields of ``vllm bench serve`` under its names, so that tools for those read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stratos.cli.load.measured import LoadResult
from stratos.cli.load.report.client import ClientVerdict
from stratos.cli.load.report.percentiles import Distribution
from stratos.cli.load.report.summary import LoadFigures, LoadReport

DIGITS = 4


def report_json(report: LoadReport, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """All figures.

    Args:
        report: of a run.
        conditions: what was sent, and where: first in the document.
    """
    groups = {"by_tenant": report.by_tenant, "by_class": report.by_class, "by_model": report.by_model}
    return {
        **conditions,
        **figures_json(report.all),
        "max_output_tokens_per_s": report.peak_output_tokens_per_s,
        "max_concurrent_requests": report.peak_open,
        "refusals": dict(report.refusals),
        "client": _client_json(report.client),
        **{name: {key: figures_json(part) for key, part in parts.items()} for name, parts in groups.items() if parts},
    }


def figures_json(figures: LoadFigures) -> dict[str, Any]:
    """Figures of requests; latencies count from the intended arrival."""
    num_tokens = figures.num_prompt_tokens + figures.num_output_tokens
    content: dict[str, Any] = {
        "duration": figures.duration_s,
        "completed": figures.num_completed,
        "failed": figures.num_failed,
        "total_input_tokens": figures.num_prompt_tokens,
        "total_output_tokens": figures.num_output_tokens,
        "request_throughput": figures.requests_per_s,
        "request_goodput": figures.goodput_per_s,
        "good_share": figures.good_share,
        "output_throughput": figures.output_tokens_per_s,
        "total_token_throughput": num_tokens / figures.duration_s if figures.duration_s else 0.0,
    }
    for name, found in (("ttft", figures.ttft), ("tpot", figures.tpot), ("itl", figures.itl), ("e2el", figures.e2e)):
        content |= _latency_json(name, found)
    return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in content.items()}


def details_json(result: LoadResult) -> dict[str, Any]:
    """Every request: lengths, seconds of its latencies, and its failure, in the order in which they ended."""
    requests = result.requests
    return {
        "input_lens": [request.num_prompt_tokens for request in requests],
        "output_lens": [request.num_output_tokens if request.is_completed else 0 for request in requests],
        "ttfts": [round(request.ttft_s, 6) if request.is_completed else 0.0 for request in requests],
        "itls": [[round(gap_s, 6) for gap_s in request.gaps_s] for request in requests],
        "start_times": [round(request.intended_s, 6) for request in requests],
        "errors": [request.answer.failure for request in requests],
    }


def _latency_json(name: str, found: Distribution) -> dict[str, float]:
    return {
        f"mean_{name}_ms": found.mean,
        f"median_{name}_ms": found.p50,
        f"std_{name}_ms": found.std,
        f"p50_{name}_ms": found.p50,
        f"p95_{name}_ms": found.p95,
        f"p99_{name}_ms": found.p99,
        f"max_{name}_ms": found.most,
    }


def _client_json(client: ClientVerdict) -> dict[str, Any]:
    return {
        "is_valid": client.is_valid,
        "faults": list(client.faults),
        "cpu_share": round(client.cpu_share, DIGITS),
        **{
            f"{name}_ms": {key: round(value, DIGITS) for key, value in dataclasses.asdict(found).items()}
            for name, found in (("send_lag", client.send_lag), ("loop_delay", client.loop_delay))
        },
    }
