"""Redis, the ledger, certificates, routers and the autoscaler."""

from __future__ import annotations

from stratos.observe.alerts.alert import Alert

STORE_ALERTS = (
    Alert(
        name="StratosSnapshotStale",
        expr="max by (release, instance) (stratos_snapshot_past_bound) == 1",
        lasting="1m",
        severity="page",
        summary="A gateway has not heard of Redis for longer than the bound of revocations.",
        meaning="Requests are served from what it knew; a key that was revoked since then may still work, and "
        "nothing can "
        "be written.",
        check=(
            "Is Redis there, and does the gateway reach it (`redis-cli ping`, network policies)?",
            "Log of the gateway.",
        ),
        act=("Bring Redis back. What waits for it is written then (see StratosLedgerWaits).",),
    ),
    Alert(
        name="StratosStoreForeign",
        expr='max by (release) (stratos_snapshot_state{state="foreign"}) == 1',
        severity="page",
        summary="Redis was emptied, has lost records, or is another one.",
        meaning="What gateways know goes on serving; nothing is written until an administrator decides.",
        check=("`stratos admin` refuses and says what is missing.", "Was a backup restored, or the URL changed?"),
        act=("Restore the right Redis, or take the new one with `stratos admin adopt-store` (docs/operations.md).",),
    ),
    Alert(
        name="StratosRedisFills",
        expr="max by (release) (stratos_redis_memory_ratio) > 0.7",
        lasting="5m",
        summary="Redis uses 70 % of its memory.",
        meaning="Entries of the ledger fill it (560 bytes each, for 92 days). At 80 % they wait on gateways' disks and "
        "budgets are no longer counted; keys, suspensions and limits go on.",
        check=("`redis-cli info memory`; requests per day times 560 bytes times `LEDGER__ENTRIES_KEPT_DAYS`.",),
        act=(
            "Give Redis more memory (`redis.maxMemory`), or keep entries for fewer days, after an export "
            "(`stratos admin ledger`).",
        ),
    ),
    Alert(
        name="StratosLedgerWaits",
        expr="sum by (release) (stratos_ledger_spool_bytes) > 0",
        lasting="10m",
        summary="Usage waits on gateways' disks for Redis.",
        meaning="Entries of the ledger could not be written for ten minutes. They are kept on disk and billed later.",
        check=("As for StratosSnapshotStale.",),
        act=("Bring Redis back; do not delete the gateways' volumes before.",),
    ),
    Alert(
        name="StratosLedgerLoses",
        expr="sum by (release) (increase(stratos_ledger_dropped_total[15m]))"
        " + sum by (release) (increase(stratos_usage_counts_dropped_total[15m])) > 0",
        severity="page",
        summary="Usage was given up and is not billed.",
        meaning="More entries waited for Redis than gateways or workers may keep.",
        check=("`stratos_ledger_spool_bytes`, disks of the gateways.",),
        act=("Bring Redis back, give gateways more disk; `LEDGER__*` and `USAGE__*` say how much is kept.",),
    ),
    Alert(
        name="StratosCertificateEnds",
        expr='min by (release, component) ({__name__=~"stratos_(tls|http)_certificate_expiry_timestamp_seconds"})'
        " - time() < 7 * 86400",
        lasting="5m",
        summary="A certificate ends within a week.",
        meaning="Certificates are renewed long before; that one is not, so the renewal does not work.",
        check=("`kubectl get cronjobs,jobs`, or cert-manager's Certificate objects.", "`stratos certificates show`."),
        act=("Run the renewal by hand (docs/operations.md, Certificates) and mend what stopped it.",),
    ),
    Alert(
        name="StratosRouterAway",
        expr='max by (release, instance) (stratos_routers{state="away"}) > 0',
        lasting="1m",
        summary="A gateway does not reach a router.",
        meaning="Requests go to the other routers; with one router alone nothing is placed.",
        check=("`kubectl get pods -l app.kubernetes.io/component=router`.", "Network policies, certificates."),
        act=("Bring the router back.",),
    ),
    Alert(
        name="StratosAutoscalerIdle",
        expr="sum by (release) (stratos_autoscaler_active) == 0",
        lasting="2m",
        summary="No autoscaler acts.",
        meaning="No replica holds the lease: pools stay as they are.",
        check=("Logs of the autoscaler; rights on the lease.", "Is the API server there?"),
        act=("Mend what the log says. Pools can be scaled by hand until then.",),
    ),
    Alert(
        name="StratosAutoscalerBlind",
        expr="max by (release) (stratos_autoscaler_routers_missing) > 0",
        lasting="5m",
        summary="The autoscaler does not hear of a router.",
        meaning="That router's queue is not counted, so nothing is drained on half of the data.",
        check=("As for StratosRouterAway.",),
        act=("Bring the router back, or lower the number of routers.",),
    ),
)
