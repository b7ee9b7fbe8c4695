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
    """It fires at one minute and not at another, nor at ``quiet_at``, for another reason.

    ``also`` are minutes at which it fires with other labels.
    """

    series: Mapping[str, str]
    fires_at: int
    resolved_at: int
    quiet_at: int | None = None
    also: tuple[tuple[int, Mapping[str, str]], ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: {"release": "r"})


def _labels(**more: str) -> dict[str, str]:
    return {"release": "r", **more}


ON_I, RI = _labels(instance="i"), f'{R}, instance="i"'
POOL = 'role="decode", model="m", instance="a"'
OTHER = 'role="decode", model="other", instance="a"'


def _pool(state: str, values: str) -> dict[str, str]:
    """Workers of a pool, as the autoscaler that acts knows them."""
    return {
        f'stratos_autoscaler_workers{{{R}, {POOL}, state="{state}"}}': values,
        f'stratos_autoscaler_active{{{R}, instance="a"}}': "1+0x60",
    }


def _queue(oldest_s: str) -> dict[str, str]:
    """The queue of model m at a router, with one of the lowest class, and what names its digest."""
    return {
        f'stratos_router_queue_oldest_seconds{{{R}, model_digest="d", class="1", work="generation"}}': oldest_s,
        f'stratos_router_queue_oldest_seconds{{{R}, model_digest="d", class="3", work="generation"}}': "29+0x60",
        f'stratos_model_info{{{R}, model="m", model_digest="d", instance="g"}}': "1+0x60",
    }


def _limited(count: str) -> dict[str, str]:
    return {f'stratos_requests_limited_total{{{R}, tenant="t", code="rate_limit_exceeded"}}': count}


HERE = {'up{release="ns/r", component="router", instance="i"}': "1+0x240"}
"""A release of the namespace ns: what the cluster tells has no other label of it."""


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
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="kept"}}': "0+1x120 120+0x20 120+0.2x40",
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="missed"}}': "0+1x40 40+0x100 41+0x40",
        },
        fires_at=30,
        resolved_at=100,
        quiet_at=150,  # one of few
        labels=_labels(plan="p", promise="ttft"),
    ),
    "StratosQueueWaitsLong": Proof(
        series={  # the model sleeps from minute 20 on, and is woken
            **_queue("29+0x10 0+0x20 200+0x5"),
            **_pool("live", "1+0x20 0+0x20"),
            f"stratos_autoscaler_desired_workers{{{R}, {POOL}}}": "1+0x20 0+0x10 1+0x10",
        },
        fires_at=5,
        resolved_at=15,
        quiet_at=35,
        labels=_labels(model="m"),
    ),
    "StratosQueueFull": Proof(
        series={
            f'stratos_router_placements_total{{{R}, class="1", outcome="overloaded"}}': "0+3x10 30+0x30 31+0x20",
            f'stratos_router_placements_total{{{R}, class="1", outcome="placed"}}': "0+50x30 1500+1x30",
            f'stratos_router_placements_total{{{R}, class="3", outcome="overloaded"}}': "0+50x60",
        },
        fires_at=6,
        resolved_at=20,
        quiet_at=44,  # one of five
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
            f'up{{{R}, component="router", instance="i"}}': "0+0x5 1+0x60",
            f'up{{{R}, component="router", instance="k"}}': "0+0x60",
            f'up{{{R}, component="gateway", instance="g"}}': "1+0x60",
            # The autoscaler's pods are gone, not only silent; another release was removed as a whole.
            f'up{{{R}, component="autoscaler", instance="a"}}': "1+0x20 _x20 1+0x20",
            'up{release="removed", component="router", instance="l"}': "1+0x20 _x40",
        },
        fires_at=3,
        resolved_at=8,
        labels=_labels(component="router"),
        also=((30, _labels(component="autoscaler")),),
        quiet_at=50,
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
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="live"}}': "4+0x20",  # nothing waits for this one
            f'stratos_autoscaler_bound_workers{{{R}, {OTHER}, bound="max"}}': "4+0x20",
            **_queue("20+0x10 0+0x10"),
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
        labels=ON_I,
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
        series={f"stratos_worker_convicted{{{RI}}}": "0x3 1x20 0x20"}, fires_at=6, resolved_at=40, labels=ON_I
    ),
    "StratosBlockLedgerBroken": Proof(
        series={f'stratos_kv_ledger_audits_total{{{R}, instance="i", outcome="broken"}}': "0+0x3 1+0x90"},
        fires_at=6,
        resolved_at=80,
        labels=ON_I,
    ),
    "StratosAdapterLoadsFail": Proof(
        series={f'stratos_adapter_loads_total{{{R}, outcome="adapter_unavailable"}}': "0+1x5 5+0x30"},
        fires_at=4,
        resolved_at=25,
    ),
    "StratosModelRefused": Proof(
        series={f'stratos_model_refused{{{R}, model="m", model_digest="d"}}': "1+0x5 0+0x10"},
        fires_at=4,
        resolved_at=8,
        labels=_labels(model="m"),
    ),
    "StratosSnapshotStale": Proof(
        series={f"stratos_snapshot_past_bound{{{RI}}}": "1+0x5 0+0x10"}, fires_at=3, resolved_at=8, labels=ON_I
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
    "StratosRedisFileFails": Proof(
        series={f'stratos_redis_file_failed{{{R}, instance="i"}}': "1+0x5 0+0x10"}, fires_at=3, resolved_at=8
    ),
    "StratosVolumeFills": Proof(
        series={
            f'kubelet_volume_stats_{what}_bytes{{namespace="{place}", persistentvolumeclaim="r-redis"}}': values
            for what, place, values in (
                ("available", "ns", "10+0x10 50+0x10"),
                ("capacity", "ns", "100+0x20"),
                ("available", "elsewhere", "1+0x20"),
                ("capacity", "elsewhere", "100+0x20"),
            )
        }
        | HERE,
        fires_at=8,
        resolved_at=15,
        labels={"namespace": "ns", "persistentvolumeclaim": "r-redis"},
    ),
    "StratosJobFailed": Proof(
        series={
            'kube_job_failed{namespace="ns", job_name="r-init-store-0a1b", condition="true"}': "1+0x5 _x10",
            'kube_job_failed{namespace="ns", job_name="r-certificates-29", condition="true"}': "1+0x15",
            'kube_job_owner{namespace="ns", job_name="r-certificates-29", owner_kind="CronJob"}': "1+0x15",
            'kube_job_failed{namespace="ns", job_name="somebody-elses", condition="true"}': "1+0x15",
        }
        | HERE,
        fires_at=3,
        resolved_at=12,
        labels={"namespace": "ns", "job_name": "r-init-store-0a1b"},
    ),
    "StratosCronJobFails": Proof(  # due every hour: the first three runs fail
        series={
            f'kube_cronjob_status_last_{what}_time{{namespace="ns", cronjob="r-backup"}}': values
            for what, values in (("schedule", "3600+0x60 7200+0x60 10800+0x60"), ("successful", "_x130 10900+0x60"))
        }
        | HERE,
        fires_at=90,
        resolved_at=140,
        labels={"namespace": "ns", "cronjob": "r-backup"},
    ),
    "StratosTenantLimited": Proof(
        series=_limited("0+5x60 300+0x60"),
        fires_at=45,
        resolved_at=80,
        labels=_labels(tenant="t", code="rate_limit_exceeded"),
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
            f"stratos_ledger_dropped_total{{{R}}}": "0+0x3 5+0x40",  # and no worker is awake
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
        labels=ON_I,
    ),
    "StratosAutoscalerIdle": Proof(
        series={f'stratos_autoscaler_active{{{R}, instance="i"}}': "0+0x5 1+0x10"}, fires_at=4, resolved_at=8
    ),
    "StratosScalersUnserved": Proof(
        series={
            f'stratos_autoscaler_metrics_api_questions_total{{{R}, outcome="answered"}}': "0+0x20 0+4x10 40+0x30",
            f'stratos_autoscaler_metrics_api_questions_total{{{R}, outcome="failed"}}': "0+4x60",
            **_pool("live", "1+0x36 0+0x24"),
            f'stratos_autoscaler_pool_info{{{R}, {POOL}, mode="hpa"}}': "1+0x60",
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="live"}}': "1+0x60",  # its planner asks nobody
            f'stratos_autoscaler_pool_info{{{R}, {OTHER}, mode="planner"}}': "1+0x60",
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
    notes = {"summary": summary, "runbook_url": f"{RUNBOOKS}/{name}.md"}
    raised = ((proof.fires_at, proof.labels), *proof.also)
    quiet = [minute for minute in (proof.resolved_at, proof.quiet_at) if minute is not None]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in proof.series.items()],
        "alert_rule_test": [
            *(
                {
                    "eval_time": f"{minute}m",
                    "alertname": name,
                    "exp_alerts": [{"exp_labels": {**labels, "severity": severity}, "exp_annotations": notes}],
                }
                for minute, labels in raised
            ),
            *({"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in quiet),
        ],
    }
