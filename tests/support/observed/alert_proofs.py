"""For every alert, series under which it fires and later resolves: input of promtool's unit tests of rules."""

from __future__ import annotations

from typing import Any

from stratos.observe.alerts.table import ALERTS
from stratos.observe.rule_files import RUNBOOKS
from tests.support.observed.proof import ON_I, OTHER, POOL, RI, Proof, R, labelled, limited, outcomes, pool, queue
from tests.support.observed.store_proofs import STORE_PROOFS

PROOFS: dict[str, Proof] = {
    **STORE_PROOFS,
    "StratosErrorBudgetBurnsFast": Proof(
        series=outcomes("0+5x70 350+0x40", "0+100x110"), fires_at=60, resolved_at=90, labels=labelled(model="m")
    ),
    "StratosErrorBudgetBurnsSlowly": Proof(
        series=outcomes("0+1x375 375+0x60", "0+100x435"), fires_at=370, resolved_at=430, labels=labelled(model="m")
    ),
    "StratosPromisesMissed": Proof(
        series={
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="kept"}}': "0+1x120 120+0x20 120+0.2x40",
            f'stratos_promises_total{{{R}, plan="p", promise="ttft", outcome="missed"}}': "0+1x40 40+0x100 41+0x40",
        },
        fires_at=30,
        resolved_at=100,
        quiet_at=150,  # one of few
        labels=labelled(plan="p", promise="ttft"),
    ),
    "StratosQueueWaitsLong": Proof(
        series={  # the model sleeps from minute 20 on, and is woken
            **queue("29+0x10 0+0x20 200+0x5"),
            **pool("live", "1+0x20 0+0x20"),
            f"stratos_autoscaler_desired_workers{{{R}, {POOL}}}": "1+0x20 0+0x10 1+0x10",
        },
        fires_at=5,
        resolved_at=15,
        quiet_at=35,
        labels=labelled(model="m"),
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
        labels=labelled(component="router", instance="i", job="j"),
    ),
    "StratosComponentDown": Proof(
        series={
            f'up{{{R}, component="router", instance="i"}}': "0+0x10 1+0x55",
            f'up{{{R}, component="router", instance="k"}}': "0+0x65",
            # Its one pod is moved to another node.
            f'up{{{R}, component="gateway", instance="g"}}': "1+0x47 stale _x1 1+0x15",
            # The autoscaler's pods are gone, not only silent; another release was removed as a whole.
            f'up{{{R}, component="autoscaler", instance="a"}}': "1+0x20 stale _x18 1+0x25",
            'up{release="removed", component="router", instance="l"}': "1+0x20 stale _x40",
        },
        fires_at=8,
        resolved_at=13,
        labels=labelled(component="router"),
        also=((30, labelled(component="autoscaler")),),
        quiet_at=49,
    ),
    "StratosRegistryDown": Proof(
        series={
            f'up{{{R}, component="router", instance="i"}}': "1+0x80",
            # Its one pod is moved to another node, and does not start on a later one.
            f'up{{{R}, component="lora-registry", instance="l"}}': "1+0x9 stale _x1 1+0x19 stale _x28 1+0x20",
        },
        fires_at=48,
        resolved_at=70,
        quiet_at=11,
        labels=labelled(component="lora-registry"),
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
            **pool("live", "0+0x10 2+0x20 0+0x5 1+0x10"),  # its first workers start with the release
            f"stratos_autoscaler_desired_workers{{{R}, {POOL}}}": "2+0x46",
            # Workers of another model sleep in their places.
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="live"}}': "0+0x46",
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="asleep"}}': "2+0x46",
            f"stratos_autoscaler_desired_workers{{{R}, {OTHER}}}": "2+0x46",
        },
        quiet_at=8,
        fires_at=34,
        resolved_at=39,
        labels=labelled(role="decode", model="m"),
    ),
    "StratosPoolBelowFloor": Proof(
        series={
            **pool("live", "2+0x10 3+0x10"),
            f'stratos_autoscaler_bound_workers{{{R}, {POOL}, bound="floor"}}': "3+0x20",
            # Workers of another model sleep.
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="live"}}': "0+0x20",
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="asleep"}}': "3+0x20",
            f'stratos_autoscaler_bound_workers{{{R}, {OTHER}, bound="floor"}}': "3+0x20",
        },
        fires_at=8,
        resolved_at=15,
        labels=labelled(role="decode", model="m"),
    ),
    "StratosPoolAtMaximum": Proof(
        series={
            **pool("live", "4+0x20"),
            f'stratos_autoscaler_bound_workers{{{R}, {POOL}, bound="max"}}': "4+0x20",
            f'stratos_autoscaler_workers{{{R}, {OTHER}, state="live"}}': "4+0x20",  # nothing waits for this one
            f'stratos_autoscaler_bound_workers{{{R}, {OTHER}, bound="max"}}': "4+0x20",
            **queue("20+0x10 0+0x10"),
        },
        fires_at=8,
        resolved_at=15,
        labels=labelled(role="decode", model="m"),
    ),
    "StratosWorkersFlap": Proof(
        series={
            f'stratos_router_worker_evictions_total{{{R}, role="decode", reason="hung"}}': "0+1x10 10+0x40",
            f'stratos_router_worker_evictions_total{{{R}, role="prefill", reason="draining"}}': "0+1x50",
            f'stratos_router_worker_evictions_total{{{R}, role="prefill", reason="asleep"}}': "0+1x50",
        },
        fires_at=8,
        resolved_at=40,
        labels=labelled(role="decode"),
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
        labels=labelled(component="c", instance="i"),
    ),
    "StratosKvPoolFull": Proof(
        series={f'stratos_kv_utilization_ratio{{{R}, device="cpu", instance="i"}}': "0.97+0x15 0.5+0x10"},
        fires_at=12,
        resolved_at=20,
        labels=labelled(device="cpu", instance="i"),
    ),
    "StratosPreemptionsMany": Proof(
        series={f'stratos_preemptions_total{{{R}, kv="recomputed"}}': "0+120x15 1800+0x20"},
        fires_at=12,
        resolved_at=28,
    ),
    "StratosHandoffsFail": Proof(
        series={
            f'stratos_kv_handoffs_total{{{R}, side="receiver", outcome="damaged"}}': "0+10x20 200+0x70 201+0x20",
            f'stratos_kv_handoffs_total{{{R}, side="receiver", outcome="committed"}}': "0+10x50 500+0x62",
        },
        fires_at=15,
        resolved_at=45,
        quiet_at=100,  # one of one
    ),
    "StratosKvDamaged": Proof(
        series={f'stratos_kv_integrity_failures_total{{{R}, cause="checksum"}}': "0+0x3 1+0x40"},
        fires_at=6,
        resolved_at=30,
        labels=labelled(cause="checksum"),
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
    "StratosBatchLate": Proof(
        series={f'stratos_batch_window_left_seconds{{{R}, instance="i"}}': "7000-60x10 86400+0x10"},
        fires_at=8,
        resolved_at=14,
    ),
    "StratosBatchesBehind": Proof(
        series={
            f'stratos_batch_lines_due{{{R}, instance="i"}}': "600+0x130 0+0x20",
            f'stratos_batch_lines_total{{{R}, instance="i", outcome="completed"}}': "0+5x70 350+20x80",
            f'stratos_batch_lines_total{{{R}, instance="i", outcome="deferred"}}': "0+50x150",
        },
        fires_at=72,
        resolved_at=95,
    ),
    "StratosDraftsLose": Proof(
        series={
            f'stratos_engine_draft_cost_seconds_total{{{R}, instance="i"}}': "0+6x40 240+0x40",
            f'stratos_engine_draft_saved_seconds_total{{{R}, instance="i"}}': "0+3x80",
        },
        fires_at=23,
        resolved_at=60,
    ),
    "StratosTenantLimited": Proof(
        series=limited("0+5x60 300+0x60"),
        fires_at=45,
        resolved_at=80,
        labels=labelled(tenant="t", code="rate_limit_exceeded"),
    ),
    "StratosWorkersUnusable": Proof(
        series={
            f'stratos_router_workers_by_protocol{{{R}, instance="i", role="decode", version="{version}"}}': values
            for version, values in (("unusable", "2+0x15 0+0x10"), ("older", "2+0x25"))
        },
        fires_at=12,
        resolved_at=20,
        labels=labelled(role="decode"),
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
