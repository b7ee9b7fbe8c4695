"""Redis, the ledger, certificates, routers and the autoscaler."""

from __future__ import annotations

from stratos.observe.alerts.alert import ACTIVE, Alert

JOBS = ".+-((credentials|certificates|init-store|declaration)-.+|models?-(.+-)?[0-9a-f]{10})"
"""Names of a release's jobs; those of models end in a digest, as jobs of others seldom do."""
OURS = (
    ' and on (namespace) label_replace(group by (release) (up{release!=""}), "namespace", "$1", "release", "(.+)/.+")'
)
"""Namespaces with a release: what the cluster tells of jobs and volumes knows no releases."""

_DUE = 'max by (namespace, cronjob) (kube_cronjob_status_last_schedule_time{cronjob=~".+-(certificates|backup)"})'


_GATEWAYS = (
    " and on (namespace, horizontalpodautoscaler) label_replace(label_replace("
    'group by (release, instance) (up{release!="", component="gateway"}), "namespace", "$1", "release", "(.+)/.+"), '
    '"horizontalpodautoscaler", "$1", "instance", "(.+)-[^-]+-[^-]+")'
)
"""HPAs whose name is that of gateways' Deployment, which begins the names of their pods."""


def _hpa(what: str) -> str:
    return f"max by (namespace, horizontalpodautoscaler) (kube_horizontalpodautoscaler_{what})"


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
        name="StratosRecordsLost",
        expr="max by (release, instance) (stratos_snapshot_missing_records) > 0",
        lasting="1m",
        summary="Redis has lost records, or changes of them, that a gateway knows.",
        meaning="A failover, or a Redis that came back older, took what had been written: a revocation, a suspension, "
        "a new plan. Gateways that saw it keep to it, and those that start now do not know of it.",
        check=(
            "Log of the gateway: how many records are missing or older in Redis.",
            "Log of Redis and its sentinels: which server took the place of which, and when.",
        ),
        act=(
            "Put them back from a gateway that knows them: `stratos admin adopt-store` with `--gateway`, or `--from` "
            "with its copy (docs/operations.md).",
        ),
    ),
    Alert(
        name="StratosRolloutStuck",
        expr="max by (release, model) (stratos_rollout_overdue_seconds) > 1800",
        summary="A roll-out of a model has stood at one step for half an hour beyond its hold, or its weights are not "
        "written.",
        meaning="Requests are served at the weights of the alias (`stratos_rollout_written_percent`). It neither goes "
        "on nor back.",
        check=(
            "`stratos models rollout NAME`: too few requests of one revision, or no verdict of a gate? Does a gateway "
            "not serve the new revision, or is it of an older version?",
            "Weights not written: does Redis answer, and can the gateways read the alias (a newer version's)?",
            "`stratos models list`: has the new revision live workers?",
            "Drift that is not measured yet: do workers of both revisions answer? The gateways' logs say why not.",
            "Do all requests of a tenant stay on one revision? Those that name no session go by their tenant.",
        ),
        act=(
            "Start workers, or wait for requests; a roll-out with `--sticky request` needs the fewest.",
            "Or go back: `stratos models rollout NAME --abort`.",
        ),
    ),
    Alert(
        name="StratosRolloutRolledBack",
        expr='min by (release, model) (stratos_rollout_phase_age_seconds{phase="rolled_back"}) < 3600',
        summary="A gate has sent all requests of a model back to the old revision, within the last hour.",
        meaning="The new revision failed more often, was slower, or answers further from the old one than its roll-out "
        "allows. The old one serves.",
        check=(
            "`stratos models rollout NAME` says which gate, and what was measured.",
            "Log and metrics of the new revision's workers, which still run.",
        ),
        act=(
            "Mend the revision, or its pool, and roll it out again; or remove it: `stratos models remove NAME "
            "--digest FIRST-DIGITS`.",
        ),
    ),
    Alert(
        name="StratosModelRefused",
        expr="max by (release, model) (stratos_model_refused) == 1",
        lasting="2m",
        summary="A gateway cannot serve a model that is recorded.",
        meaning="Requests for it get 404 there, or go on with what was served before. Other models are served as ever.",
        check=(
            "`stratos models list`, or the gateway's log: files are missing or have another digest, a tokenizer does "
            "not load, another name has the digest, or there are more records than `MODEL_RECORDS__MAX_MODELS`.",
            "Does the gateway reach the object store (`OBJECT_STORE__URL`, network policies)?",
        ),
        act=(
            "Add it again from a good folder (`stratos models add NAME PATH`), which stores its files again.",
            "Or remove it: `stratos models remove NAME --digest FIRST-DIGITS`.",
        ),
    ),
    Alert(
        name="StratosRedisFills",
        expr="max by (release) (stratos_redis_memory_ratio) > 0.7",
        lasting="5m",
        summary="Redis uses 70 % of its memory.",
        meaning="At 80 % entries of the ledger wait on gateways' disks, budgets are no longer counted, and streams "
        "get no further records; keys, suspensions and limits go on. Entries take 0.7 KB each until they go to the "
        "object store, at most 70 MB; sums by day, model, adapter and key stay.",
        check=(
            "`redis-cli info memory`, `redis-cli --bigkeys`.",
            "`stratos_ledger_unsealed_entries`: is it beyond `LEDGER__MAX_UNSEALED`? Then see StratosLedgerUnsealed.",
            "`stratos_stream_records_total`: how many are made, and moved to the object store (`spilled`).",
        ),
        act=(
            "Give Redis more memory (`redis.maxMemory`), or lower `LEDGER__MAX_UNSEALED`, `STREAMS__TENANT_BYTES` or "
            "`STREAMS__SPILL_AFTER_S`.",
        ),
    ),
    Alert(
        name="StratosRedisFileFails",
        expr="max by (release) (stratos_redis_file_failed) == 1",
        lasting="1m",
        severity="page",
        summary="Redis cannot write its file.",
        meaning="Its disk is full or broken. Redis refuses writes while its file of commands (AOF) fails, so nothing "
        "is written that a restart would lose: no key, no suspension, no usage. Requests go on.",
        check=("`redis-cli info persistence`, and the log of Redis.", "Room of its volume: `df` in its pod."),
        act=("Give the volume room (`redis.volume.size`, where its class can grow), or bring the disk back.",),
    ),
    Alert(
        name="StratosVolumeFills",
        expr="min by (namespace, persistentvolumeclaim) "
        f'(kubelet_volume_stats_available_bytes{{persistentvolumeclaim=~".+-(redis|objects)"}}'
        f' / kubelet_volume_stats_capacity_bytes{{persistentvolumeclaim=~".+-(redis|objects)"}}) < 0.15{OURS}',
        lasting="5m",
        summary="A volume of a release's own Redis or object store has less than 15 % left.",
        meaning="Redis stops taking writes when its volume is full, and the object store takes no more adapters, "
        "segments and backups. Needs the kubelets' metrics.",
        check=("`df` in the pod.", "`stratos_ledger_unsealed_entries`, sizes of adapters, backups that are kept."),
        act=("Let the volume grow, or take stores of your own: these two are for evaluation.",),
    ),
    Alert(
        name="StratosJobFailed",
        expr="max by (namespace, job_name) "
        f'(kube_job_failed{{condition="true", job_name=~"{JOBS}"}}'
        ' unless on (namespace, job_name) kube_job_owner{owner_kind=~"CronJob|Model"}) == 1' + OURS,
        lasting="1m",
        summary="A job of a release has failed.",
        meaning="It makes the credentials or certificates, sets the store up, applies the declaration, or tells "
        "gateways of models (`NAME-model-ENTRY-`, `NAME-models-`); what needs it waits. A model without its record is "
        "a 404, and workers of a changed source without one get no request. The job goes a day after its end, or with "
        "the next version. Needs kube-state-metrics.",
        check=("`kubectl logs job/NAME`, `kubectl describe job NAME`.",),
        act=("Mend what the log says, and install the same version again after `kubectl delete job NAME`.",),
    ),
    Alert(
        name="StratosCronJobFails",
        expr=f"{_DUE} > (max by (namespace, cronjob) (kube_cronjob_status_last_successful_time) or 0 * {_DUE}){OURS}",
        lasting="1h",
        summary="The last renewal of certificates, or the last backup, has not succeeded.",
        meaning="It was due an hour ago, and no run has succeeded since. Needs kube-state-metrics.",
        check=(
            "`kubectl get jobs`, `kubectl logs job/NAME` of the last run: a pod that stays Pending blocks the next.",
        ),
        act=("Mend what the log says, and run it once: `kubectl create job NAME --from=cronjob/NAME`.",),
    ),
    Alert(
        name="StratosLedgerUnsealed",
        expr="max by (release) (stratos_ledger_seal_lag_seconds) > 1800",
        lasting="5m",
        summary="Entries of the ledger do not get from Redis into the object store.",
        meaning="For half an hour no gateway has brought all that was due into segments. Nothing is lost: entries stay "
        "in Redis, whose memory they fill, and what comes late waits on gateways' disks.",
        check=(
            'Log of the gateways: "entries of the ledger stay in Redis" says why.',
            "Does the object store answer, may gateways write to it, and has it room?",
            "`stratos_ledger_unsealed_entries`: 0.7 KB of Redis each.",
        ),
        act=("Bring the object store back; the next look of any gateway goes on where it was.",),
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
        expr="sum by (release) (increase(stratos_ledger_dropped_total[15m])) > 0"
        " or sum by (release) (increase(stratos_usage_counts_dropped_total[15m])) > 0",
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
        check=(
            "`kubectl get cronjobs,jobs`, or cert-manager's Certificate objects.",
            "Log of the last job: it says when the next certificate expires.",
        ),
        act=("Run the renewal by hand (docs/operations.md, Certificates) and mend what stopped it.",),
    ),
    Alert(
        name="StratosCertificateEndsToday",
        expr='min by (release, component) ({__name__=~"stratos_(tls|http)_certificate_expiry_timestamp_seconds"})'
        " - time() < 86400",
        lasting="5m",
        severity="page",
        summary="A certificate ends within a day.",
        meaning="Connections between processes fail when it has ended. StratosCertificateEnds has told of it for days.",
        check=("As for StratosCertificateEnds.",),
        act=("Run the renewal by hand now (docs/operations.md, Certificates); processes take it without a restart.",),
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
        name="StratosGatewaysAtMaximum",
        expr=f"{_hpa('status_desired_replicas')} >= {_hpa('spec_max_replicas')}"
        f" > {_hpa('spec_min_replicas')}{_GATEWAYS}",
        lasting="15m",
        summary="There are as many gateways as there may be.",
        meaning="Their HPA wants its maximum, so more requests are open at each gateway than it was given "
        "(`gateway.autoscaling.openStreams`), or soon will be. One whose least is its maximum says nothing, nor one "
        "whose name is longer than 46 characters, since pods' names have only a part of it. Needs kube-state-metrics. "
        "For workers see StratosPoolAtMaximum.",
        check=("Dashboard Fleet: active requests, delay of the gateways' event loops.",),
        act=("Raise `gateway.autoscaling.maxReplicas`.",),
    ),
    Alert(
        name="StratosScalersUnserved",
        expr='sum by (release) (rate(stratos_autoscaler_metrics_api_questions_total{outcome="answered"}[5m])) == 0'
        f" and on (release) sum by (release) (stratos_autoscaler_workers{ACTIVE}"
        ' and on (release, instance, role, model) stratos_autoscaler_pool_info{mode="hpa"}) > 0',
        lasting="10m",
        summary="No HPA gets numbers of the release.",
        meaning="For a quarter of an hour the autoscaler answered no question of an HPA: pools stay as they are. "
        "Either none arrives, or all are refused or fail. A release none of whose pools with an HPA is awake is left "
        "out: those HPAs ask nothing.",
        check=(
            "`kubectl get apiservice v1beta1.external.metrics.k8s.io`: is it available, and whose is it?",
            "`stratos_autoscaler_metrics_api_questions_total` by outcome; `failed` is a router that does not answer.",
            "`kubectl describe hpa`: what it was told.",
        ),
        act=("Mend what the APIService or the autoscaler's log says. Pools can be scaled by hand until then.",),
    ),
    Alert(
        name="StratosModelResourceFailed",
        expr=f'max by (release) (stratos_autoscaler_model_resources{{state="Failed"}}{ACTIVE}) > 0',
        lasting="15m",
        summary="An object of kind Model does not come up.",
        meaning="It was refused, or its pods do not start. Other models are served as ever, and so is what it served "
        "before.",
        check=(
            "`kubectl get models --output wide`: REASON and MESSAGE.",
            "docs/models.md, As objects of the cluster, has the reasons.",
        ),
        act=("Mend what the message says, or delete the Model.",),
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
