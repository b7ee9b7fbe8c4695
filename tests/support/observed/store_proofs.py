"""Proofs of the alerts on Redis, the ledger, certificates, jobs, routers and the autoscaler."""

from __future__ import annotations

from tests.support.observed.proof import HERE, ON_I, OTHER, POOL, RI, Proof, R, labelled, pool

STORE_PROOFS: dict[str, Proof] = {
    "StratosRolloutStuck": Proof(
        series={
            f'stratos_rollout_overdue_seconds{{{R}, model="m", instance="i"}}': "0+0x4 1801+60x5 0+0x10",
            f'stratos_rollout_overdue_seconds{{{R}, model="other", instance="i"}}': "1800+0x20",
        },
        fires_at=6,
        resolved_at=12,
        labels=labelled(model="m"),
    ),
    "StratosRolloutRolledBack": Proof(
        series={
            f'stratos_rollout_phase_age_seconds{{{R}, model="m", phase="rolled_back"}}': "_x2 3300+60x20",
            f'stratos_rollout_phase_age_seconds{{{R}, model="m", phase="done"}}': "0+60x20",
        },
        fires_at=4,
        resolved_at=12,
        labels=labelled(model="m"),
    ),
    "StratosModelResourceFailed": Proof(
        series={
            f'stratos_autoscaler_model_resources{{{RI}, state="Failed"}}': "1+0x20 0+0x10",
            f'stratos_autoscaler_model_resources{{{RI}, state="Ready"}}': "1+0x30",
            f"stratos_autoscaler_active{{{RI}}}": "1+0x30",
        },
        fires_at=16,
        resolved_at=24,
    ),
    "StratosModelRefused": Proof(
        series={f'stratos_model_refused{{{R}, model="m", model_digest="d"}}': "1+0x5 0+0x10"},
        fires_at=4,
        resolved_at=8,
        labels=labelled(model="m"),
    ),
    "StratosSnapshotStale": Proof(
        series={f"stratos_snapshot_past_bound{{{RI}}}": "1+0x5 0+0x10"}, fires_at=3, resolved_at=8, labels=ON_I
    ),
    "StratosStoreForeign": Proof(
        series={f'stratos_snapshot_state{{{R}, state="foreign"}}': "1+0x5 0+0x10"}, fires_at=3, resolved_at=8
    ),
    "StratosRecordsLost": Proof(
        series={f"stratos_snapshot_missing_records{{{RI}}}": "1+0x5 0+0x10"}, fires_at=3, resolved_at=8, labels=ON_I
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
            # One that records a model, of the release; of a Model, whose status says it; of others.
            'kube_job_failed{namespace="ns", job_name="r-model-base-0123456789", condition="true"}': "_x20 1+0x5 _x10",
            'kube_job_failed{namespace="ns", job_name="r-model-chat-0123456789", condition="true"}': "1+0x35",
            'kube_job_owner{namespace="ns", job_name="r-model-chat-0123456789", owner_kind="Model"}': "1+0x35",
            'kube_job_failed{namespace="ns", job_name="train-model-7", condition="true"}': "1+0x35",
        }
        | HERE,
        fires_at=3,
        resolved_at=12,
        labels={"namespace": "ns", "job_name": "r-init-store-0a1b"},
        also=((23, {"namespace": "ns", "job_name": "r-model-base-0123456789"}),),
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
        labels=labelled(component="router"),
    ),
    "StratosCertificateEndsToday": Proof(
        series={
            f'stratos_tls_certificate_expiry_timestamp_seconds{{{R}, component="router"}}': "50000+0x20 9000000+0x20"
        },
        fires_at=10,
        resolved_at=30,
        labels=labelled(component="router"),
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
            **pool("live", "1+0x36 0+0x24"),
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
    "StratosGatewaysAtMaximum": Proof(
        series={
            f'kube_horizontalpodautoscaler_{what}{{namespace="ns", horizontalpodautoscaler="{name}"}}': values
            for name, desired, least in (
                ("r-gateway-base", "10+0x30 4+0x10", "2+0x40"),
                ("r-gateway-fixed", "10+0x40", "10+0x40"),
                ("r-decode-base", "10+0x40", "2+0x40"),
                ("the-gateway-of-a-neighbour", "10+0x40", "2+0x40"),
            )
            for what, values in (
                ("status_desired_replicas", desired),
                ("spec_max_replicas", "10+0x40"),
                ("spec_min_replicas", least),
            )
        }
        | {
            f'up{{release="ns/r", component="gateway", instance="r-gateway-{model}-5d9c7b8f6-x2k4p"}}': "1+0x40"
            for model in ("base", "fixed")
        },
        fires_at=20,
        resolved_at=35,
        labels={"namespace": "ns", "horizontalpodautoscaler": "r-gateway-base"},
    ),
}
