"""Recording rules: sums that several panels and alerts share, named ``stratos:what:how`` as Prometheus advises."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.core.requests.limits import BATCH_CLASS

BURN_WINDOWS = ("5m", "30m", "1h", "6h", "3d")
WAITS_FOR = {"generation": "decode", "embedding": "prefill"}
"""The role of workers that a kind of request waits for at the router."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One series that Prometheus computes for itself."""

    name: str
    expr: str


def judged(outcomes: str) -> str:
    """Ended requests that the objective counts: the lowest class is refused first where room is short, by design."""
    return f'stratos_request_outcomes_total{{class!="{BATCH_CLASS}", outcome=~"{outcomes}"}}'


def _errors(window: str) -> Recording:
    failed = f"sum by (release, model) (rate({judged('failed')}[{window}]))"
    counted = f"sum by (release, model) (rate({judged('finished|failed')}[{window}]))"
    return Recording(f"stratos:request_errors:ratio_rate{window}", f"{failed} / ({counted} > 0)")


def _p95(metric: str) -> str:
    buckets = f'rate({metric}_bucket{{class!="platform"}}[5m])'
    return f"histogram_quantile(0.95, sum by (release, model, le) ({buckets}))"


def _named(how: str, series: str) -> str:
    """A router's series by the names of its models: routers know digests alone, a gateway knows its own."""
    names = "max by (release, model_digest, model) (stratos_model_info)"
    return f"{how} by (release, model_digest) ({series}) * on (release, model_digest) group_right () {names}"


def _oldest(work: str, role: str) -> str:
    """Age of what waits for a role's workers; the lowest class waits for all others, which is as it should be."""
    series = f'stratos_router_queue_oldest_seconds{{work="{work}", class!="{BATCH_CLASS}"}}'
    return f'label_replace(max by (release, model) ({_named("max", series)}), "role", "{role}", "", "")'


RECORDINGS: tuple[Recording, ...] = (
    *(_errors(window) for window in BURN_WINDOWS),
    Recording(
        "stratos:requests:rate5m",
        'sum by (release, model) (rate(stratos_request_outcomes_total{outcome="finished"}[5m]))',
    ),
    Recording("stratos:output_tokens:rate5m", "sum by (release, model) (rate(stratos_output_tokens_total[5m]))"),
    Recording("stratos:ttft_seconds:p95_5m", _p95("stratos_request_ttft_seconds")),
    Recording("stratos:itl_seconds:p95_5m", _p95("stratos_request_itl_seconds")),
    Recording(
        "stratos:promises_kept:ratio_rate30m",
        'sum by (release, plan, promise) (rate(stratos_promises_total{outcome="kept"}[30m]))'
        " / (sum by (release, plan, promise) (rate(stratos_promises_total[30m])) > 0)",
    ),
    Recording("stratos:queue_depth", _named("sum", "stratos_router_queue_depth")),
    Recording("stratos:queue_oldest_seconds", " or ".join(_oldest(work, role) for work, role in WAITS_FOR.items())),
    Recording("stratos:device_price:hour", "sum by (release, model) (stratos_device_hour_price)"),
    Recording(
        "stratos:cost_per_million_output_tokens",
        "stratos:device_price:hour / 3600 * 1e6 / (stratos:output_tokens:rate5m > 0)",
    ),
    Recording(
        "stratos:requests_per_currency_unit",
        "stratos:requests:rate5m / (stratos:device_price:hour > 0) * 3600",
    ),
)
