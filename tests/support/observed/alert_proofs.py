"""For every alert, series under which it fires and later resolves: input of promtool's unit tests of rules.

Series are one sample a minute in promtool's notation: ``0+5x10`` is 0, 5, 10, ... eleven samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratos.observe.alerts.table import ALERTS
from stratos.observe.rule_files import RUNBOOKS

R = 'release="r"'


@dataclass(frozen=True, kw_only=True)
class Proof:
    """It fires at one minute and not at another, nor at ``quiet_at``, for another reason."""

    series: Mapping[str, str]
    fires_at: int
    resolved_at: int
    quiet_at: int | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: {"release": "r"})


def _labels(**more: str) -> dict[str, str]:
    return {"release": "r", **more}


POOL = 'role="decode", model="m", instance="a"'


def _pool(state: str, values: str) -> dict[str, str]:
    """Workers of a pool, as the autoscaler that acts knows them."""
    return {
        f'stratos_autoscaler_workers{{{R}, {POOL}, state="{state}"}}': values,
        f'stratos_autoscaler_active{{{R}, instance="a"}}': "1+0x60",
    }


def _outcomes(failed: str, finished: str) -> dict[str, str]:
    return {
        f'stratos_request_outcomes_total{{{R}, model="m", outcome="{outcome}"}}': values
        for outcome, values in (("failed", failed), ("finished", finished))
    }


PROOFS: dict[str, Proof] = {
    "StratosErrorBudgetBurnsFast": Proof(
        series=_outcomes("0+5x70 350+0x40", "0+100x110"), fires_at=60, resolved_at=90, labels=_labels(model="m")
    ),
    "StratosErrorBudgetBurnsSlowly": Proof(
        series=_outcomes("0+1x375 375+0x60", "0+100x435"), fires_at=370, resolved_at=430, labels=_labels(model="m")
    ),
    "StratosPromisesMissed": Proof(
        series={
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="kept"}}': "0+1x120",
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="missed"}}': "0+1x40 40+0x80",
        },
        fires_at=30,
        resolved_at=100,
        labels=_labels(plan="p", promise="ttft"),
    ),
    "StratosQueueWaitsLong": Proof(
        series={f'stratos_router_queue_oldest_seconds{{{R}, class="1"}}': "45+0x10 0+0x10"},
        fires_at=5,
        resolved_at=15,
        labels=_labels(**{"class": "1"}),
    ),
    "StratosQueueFull": Proof(
        series={
            f'stratos_router_placements_total{{{R}, outcome="overloaded"}}': "0+1x10 10+0x20",
            f'stratos_router_placements_total{{{R}, outcome="placed"}}': "0+50x30",
        },
        fires_at=5,
        resolved_at=20,
    ),
    "StratosPromptConvicted": Proof(
        series={f"stratos_convictions_total{{{R}}}": "0+0x3 1+0x40"}, fires_at=6, resolved_at=30
    ),
    "StratosProcessDown": Proof(
        series={f'up{{{R}, component="router", instance="i", job="j"}}': "0+0x5 1+0x10"},
        fires_at=3,
        resolved_at=8,
        labels=_labels(component="router", instance="i", job="j"),
    ),
    "StratosComponentDown": Proof(
        series={
            f'up{{{R}, component="router", instance="i"}}': "0+0x5 1+0x10",
            f'up{{{R}, component="router", instance="k"}}': "0+0x15",
        },
        fires_at=3,
        resolved_at=8,
        labels=_labels(component="router"),
    ),
    "StratosGatewayMissing": Proof(  # another release has one
        series={
            f'up{{{R}, component="gateway", instance="i"}}': "_x5 1+0x10",
            f'up{{{R}, component="router", instance="k"}}': "1+0x15",
            'up{release="other", component="gateway", instance="l"}': "1+0x15",
        },
        fires_at=3,
        resolved_at=8,
    ),
    "StratosNoLiveWorker": Proof(
        series={
            **_pool("live", "2+0x20 0+0x5 1+0x10"),
            f"stratos_autoscaler_desired_workers{{{R}, {POOL}}}": "2+0x35",
        },
        fires_at=23,
        resolved_at=28,
        labels=_labels(role="decode", model="m"),
    ),
    "StratosPoolBelowFloor": Proof(
        series={
            **_pool("live", "2+0x10 3+0x10"),
            f'stratos_autoscaler_bound_workers{{{R}, {POOL}, bound="floor"}}': "3+0x20",
        },
        fires_at=8,
        resolved_at=15,
        labels=_labels(role="decode", model="m"),
    ),
    "StratosPoolAtMaximum": Proof(
        series={
            **_pool("live", "4+0x20"),
            f'stratos_autoscaler_bound_workers{{{R}, {POOL}, bound="max"}}': "4+0x20",
            f'stratos_router_queue_oldest_seconds{{{R}, class="1"}}': "20+0x10 0+0x10",
        },
        fires_at=8,
        resolved_at=15,
        labels=_labels(role="decode", model="m"),
    ),
    "StratosWorkersFlap": Proof(
        series={
            f'stratos_router_worker_evictions_total{{{R}, role="decode", reason="hung"}}': "0+1x10 10+0x40",
            f'stratos_router_worker_evictions_total{{{R}, role="prefill", reason="draining"}}': "0+1x50",
        },
        fires_at=8,
        resolved_at=40,
        labels=_labels(role="decode"),
    ),
    "StratosStepsStandStill": Proof(
        series={
            f'stratos_requests_running{{{R}, instance="i"}}': "3+0x20",
            f'stratos_engine_steps_total{{{R}, instance="i"}}': "0+100x5 500+0x5 600+100x10",
        },
        fires_at=9,
        resolved_at=15,
        labels=_labels(instance="i"),
    ),
    "StratosEventLoopLate": Proof(
        series={
            f'stratos_event_loop_delay_seconds_bucket{{{R}, component="c", instance="i", le="{bound}"}}': values
            for bound, values in (("0.5", "0+0x15 0+10x40"), ("1.0", "0+10x56"), ("+Inf", "0+10x56"))
        },
        fires_at=10,
        resolved_at=30,
        labels=_labels(component="c", instance="i"),
    ),
    "StratosKvPoolFull": Proof(
        series={f'stratos_kv_utilization_ratio{{{R}, device="cpu", instance="i"}}': "0.97+0x15 0.5+0x10"},
        fires_at=12,
        resolved_at=20,
        labels=_labels(device="cpu", instance="i"),
    ),
    "StratosPreemptionsMany": Proof(
        series={f'stratos_preemptions_total{{{R}, kv="recomputed"}}': "0+120x15 1800+0x20"},
        fires_at=12,
        resolved_at=28,
    ),
    "StratosHandoffsFail": Proof(
        series={
            f'stratos_kv_handoffs_total{{{R}, side="receiver", outcome="damaged"}}': "0+10x20 200+0x40",
            f'stratos_kv_handoffs_total{{{R}, side="receiver", outcome="committed"}}': "0+10x60",
        },
        fires_at=15,
        resolved_at=45,
    ),
    "StratosKvDamaged": Proof(
        series={f'stratos_kv_integrity_failures_total{{{R}, cause="checksum"}}': "0+0x3 1+0x40"},
        fires_at=6,
        resolved_at=30,
        labels=_labels(cause="checksum"),
    ),
    "StratosWorkerConvicted": Proof(
        series={f'stratos_worker_convicted{{{R}, instance="i"}}': "0x3 1x20 0x20"},
        fires_at=6,
        resolved_at=40,
        labels=_labels(instance="i"),
    ),
    "StratosBlockLedgerBroken": Proof(
        series={f'stratos_kv_ledger_audits_total{{{R}, instance="i", outcome="broken"}}': "0+0x3 1+0x90"},
        fires_at=6,
        resolved_at=80,
        labels=_labels(instance="i"),
    ),
    "StratosAdapterLoadsFail": Proof(
        series={f'stratos_adapter_loads_total{{{R}, outcome="adapter_unavailable"}}': "0+1x5 5+0x30"},
        fires_at=4,
        resolved_at=25,
    ),
    "StratosSnapshotStale": Proof(
        series={f'stratos_snapshot_past_bound{{{R}, instance="i"}}': "1+0x5 0+0x10"},
        fires_at=3,
        resolved_at=8,
        labels=_labels(instance="i"),
    ),
    "StratosStoreForeign": Proof(
        series={f'stratos_snapshot_state{{{R}, state="foreign"}}': "1+0x5 0+0x10"}, fires_at=3, resolved_at=8
    ),
    "StratosBatchLate": Proof(
        series={f'stratos_batch_window_left_seconds{{{R}, instance="i"}}': "7000-60x10 86400+0x10"},
        fires_at=8,
        resolved_at=14,
    ),
    "StratosDraftsLose": Proof(
        series={
            f'stratos_engine_draft_cost_seconds_total{{{R}, instance="i"}}': "0+6x40 240+0x40",
            f'stratos_engine_draft_saved_seconds_total{{{R}, instance="i"}}': "0+3x80",
        },
        fires_at=23,
        resolved_at=60,
    ),
    "StratosRedisFills": Proof(
        series={f'stratos_redis_memory_ratio{{{R}, instance="i"}}': "0.75+0x10 0.5+0x10"}, fires_at=8, resolved_at=14
    ),
    "StratosLedgerUnsealed": Proof(
        series={f'stratos_ledger_seal_lag_seconds{{{R}, instance="i"}}': "1700 1760 1820+60x10 5+0x10"},
        fires_at=9,
        resolved_at=15,
    ),
    "StratosLedgerWaits": Proof(
        series={f"stratos_ledger_spool_bytes{{{R}}}": "100+0x15 0+0x10"}, fires_at=12, resolved_at=20
    ),
    "StratosLedgerLoses": Proof(
        series={
            f"stratos_ledger_dropped_total{{{R}}}": "0+0x3 5+0x40",
            f"stratos_usage_counts_dropped_total{{{R}}}": "0+0x43",
        },
        fires_at=6,
        resolved_at=30,
    ),
    "StratosCertificateEnds": Proof(  # time begins in 1970
        series={
            f'stratos_tls_certificate_expiry_timestamp_seconds{{{R}, component="router"}}': "100000+0x20 9000000+0x20"
        },
        fires_at=10,
        resolved_at=30,
        labels=_labels(component="router"),
    ),
    "StratosCertificateEndsToday": Proof(
        series={
            f'stratos_tls_certificate_expiry_timestamp_seconds{{{R}, component="router"}}': "50000+0x20 9000000+0x20"
        },
        fires_at=10,
        resolved_at=30,
        labels=_labels(component="router"),
    ),
    "StratosRouterAway": Proof(
        series={f'stratos_routers{{{R}, instance="i", state="away"}}': "1+0x5 0+0x10"},
        fires_at=3,
        resolved_at=8,
        labels=_labels(instance="i"),
    ),
    "StratosAutoscalerIdle": Proof(
        series={f'stratos_autoscaler_active{{{R}, instance="i"}}': "0+0x5 1+0x10"}, fires_at=4, resolved_at=8
    ),
    "StratosScalersUnserved": Proof(
        series={
            f'stratos_autoscaler_metrics_api_questions_total{{{R}, outcome="answered"}}': "0+0x20 0+4x10 40+0x30",
            f'stratos_autoscaler_metrics_api_questions_total{{{R}, outcome="failed"}}': "0+4x60",
            **_pool("live", "1+0x36 0+0x24"),
        },
        fires_at=16,
        resolved_at=30,
        quiet_at=58,
    ),
    "StratosAutoscalerBlind": Proof(
        series={f"stratos_autoscaler_routers_missing{{{R}}}": "1+0x10 0+0x10"}, fires_at=7, resolved_at=14
    ),
}


def unit_tests(rules_file: str) -> dict[str, Any]:
    """Input of ``promtool test rules``."""
    tests = [_test(alert.name, PROOFS[alert.name], alert.severity, alert.summary) for alert in ALERTS]
    return {"rule_files": [rules_file], "evaluation_interval": "1m", "tests": tests}


def _test(name: str, proof: Proof, severity: str, summary: str) -> dict[str, Any]:
    expected = {
        "exp_labels": {**proof.labels, "severity": severity},
        "exp_annotations": {"summary": summary, "runbook_url": f"{RUNBOOKS}/{name}.md"},
    }
    quiet = [minute for minute in (proof.resolved_at, proof.quiet_at) if minute is not None]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in proof.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{proof.fires_at}m", "alertname": name, "exp_alerts": [expected]},
            *({"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in quiet),
        ],
    }
