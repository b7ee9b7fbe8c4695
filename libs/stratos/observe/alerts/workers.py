"""Processes, workers, engines and hand-offs."""

from __future__ import annotations

from stratos.observe.alerts.alert import ACTIVE, FEWEST, Alert


def _gone(components: str) -> str:
    """Components of a release of which none answers, though one did within the last day."""
    was_there = f'last_over_time(up{{release!="", component=~"{components}"}}[1d])'
    return (
        f"group by (release, component) ({was_there}) unless group by (release, component) (up == 1)"
        ' and on (release) group by (release) (up{release!=""})'
    )


_FAILED_HANDOFFS = 'stratos_kv_handoffs_total{side="receiver", outcome!~"committed|cancelled|busy"}'


WORKER_ALERTS = (
    Alert(
        name="StratosProcessDown",
        expr='up{release!=""} == 0',
        lasting="1m",
        summary="A process of the platform does not answer its scrapes.",
        meaning="It is gone, hangs as a whole, or the network between Prometheus and it is cut. A pod that has not "
        "started yet is no target. The labels say which. The others of its component carry its load: see "
        "StratosComponentDown.",
        check=(
            "`kubectl get pods`, or `stratos status`: is it restarting?",
            "Its log, and that of its last run (`kubectl logs --previous`).",
            "Are other processes of the same node away as well?",
        ),
        act=(
            "One process: it is started again by itself; its streams go on elsewhere.",
            "A node: drain it. A policy that shuts Prometheus out: `networkPolicies.metricsClients`.",
        ),
    ),
    Alert(
        name="StratosComponentDown",
        expr=_gone("gateway|router|autoscaler"),
        lasting="5m",
        severity="page",
        summary="No process of a component answers.",
        meaning="All gateways, all routers or all autoscalers of a release have been gone or unreachable for five "
        "minutes, though one of them was there within the last day: a pod that moves to another node is back before. "
        "So it is raised for pods that do not start, which are no targets, and for a day where a component was "
        "switched off. After that day it falls silent, whether or not the component is back. Clients notice routers "
        "and gateways sooner: see StratosErrorBudgetBurnsFast and StratosGatewayMissing.",
        check=("`kubectl get pods`, and the events of those that do not start.", "Nodes, quotas, images."),
        act=("Bring one of them back; without routers nothing is placed, without autoscalers no size changes.",),
    ),
    Alert(
        name="StratosRegistryDown",
        expr=_gone("lora-registry"),
        lasting="15m",
        summary="No registry of adapters answers.",
        meaning="For a quarter of an hour, though one was there within the last day; after that day it falls silent. "
        "Adapters that workers and gateways know go on; none is registered or changed.",
        check=("`kubectl get pods -l app.kubernetes.io/component=lora-registry`, and their events.",),
        act=("Bring it back. More than one (`loraRegistry.replicas`) outlives the drain of a node.",),
    ),
    Alert(
        name="StratosGatewayMissing",
        expr='(group by (release) (up{release!="", component!="gateway"})'
        ' unless group by (release) (up{component="gateway"} == 1)) or absent(up{component="gateway"} == 1)',
        lasting="1m",
        severity="page",
        summary="No gateway of a release answers: nothing is served, or Prometheus finds none.",
        meaning="Other processes of the release are scraped, and no gateway with success; or no release has a gateway.",
        check=("`kubectl get pods -l app.kubernetes.io/component=gateway`.", "Targets of Prometheus: are there any?"),
        act=("Start gateways; if they run, mend the discovery (PodMonitor, or the annotations of the pods).",),
    ),
    Alert(
        name="StratosNoLiveWorker",
        expr=f'max by (release, role, model) (stratos_autoscaler_workers{{state="live"}}{ACTIVE}) == 0'
        f" and max by (release, role, model) (min_over_time(stratos_autoscaler_desired_workers[15m]){ACTIVE}) > 0"
        " and max by (release, role, model) (stratos_autoscaler_desired_workers offset 15m) > 0"
        " unless max by (release, role, model) "
        f'(max_over_time(stratos_autoscaler_workers{{state="asleep"}}[15m]){ACTIVE}) > 0',
        lasting="1m",
        severity="page",
        summary="A model that is awake has no live worker of a role.",
        meaning="Without decode workers requests wait; without prefill workers decode workers compute prompts "
        "themselves. A model that sleeps, or was woken or installed in the last quarter of an hour, is left out.",
        check=("`stratos status`: why each worker is out.", "Workers' logs; devices and memory of their nodes."),
        act=("Mend what the workers' logs say.",),
    ),
    Alert(
        name="StratosPoolBelowFloor",
        expr=f'max by (release, role, model) (stratos_autoscaler_workers{{state="live"}}{ACTIVE})'
        f' < max by (release, role, model) (stratos_autoscaler_bound_workers{{bound="floor"}}{ACTIVE})'
        f' unless max by (release, role, model) (stratos_autoscaler_workers{{state="asleep"}}{ACTIVE}) > 0',
        lasting="5m",
        summary="A pool has fewer live workers than its floor.",
        meaning="The floor is what the load takes and two more. Below it the loss of two more workers may end streams.",
        check=("Dashboard Autoscaler: workers by state.", "Pods of the pool that are pending, and why."),
        act=("Give the pool room: nodes, devices, quota. A node that is drained: wait until its pods are elsewhere.",),
    ),
    Alert(
        name="StratosPoolAtMaximum",
        expr=f'max by (release, role, model) (stratos_autoscaler_workers{{state="live"}}{ACTIVE})'
        f' >= max by (release, role, model) (stratos_autoscaler_bound_workers{{bound="max"}}{ACTIVE})'
        " and on (release, role, model) stratos:queue_oldest_seconds > 10",
        lasting="5m",
        summary="A pool is as large as it may be, and requests wait.",
        meaning="No scaler may add a worker, and requests that need one have waited for more than ten seconds: for "
        "decode workers those for tokens, for prefill workers those for vectors.",
        check=("Dashboard Tenants: one tenant's flood, or the load of all.", "`stratos autoscaler explain`."),
        act=("Raise `maxReplicas` where there is room, or lower what a tenant may have open (docs/tenants.md).",),
    ),
    Alert(
        name="StratosWorkersUnusable",
        expr='max by (release, role) (stratos_router_workers_by_protocol{version="unusable"}) > 0',
        lasting="10m",
        summary="Workers speak a protocol that routers do not.",
        meaning="Two versions run side by side that are further apart than one: those workers get no work. An upgrade "
        "or a rollback that stopped halfway leaves a fleet like that.",
        check=(
            "`stratos_router_workers_by_protocol` by role and version.",
            "Images of the pods: `kubectl get pods -o wide`, `kubectl rollout status`.",
        ),
        act=("Finish the upgrade, or go back; where it skips a version, upgrade to the one between first.",),
    ),
    Alert(
        name="StratosWorkersFlap",
        expr="sum by (release, role) "
        '(increase(stratos_router_worker_evictions_total{reason!~"draining|asleep"}[15m])) > 3',
        lasting="1m",
        summary="Workers go out again and again.",
        meaning="Routers took live workers out more than three times in a quarter of an hour: they die, hang, or "
        "are not "
        "reached.",
        check=(
            "`stratos_router_worker_evictions_total` by reason.",
            "Restarts of the workers' pods, and what ended them (memory?).",
        ),
        act=("Memory: lower `RUNNER__KV_POOL_BYTES`. Hangs: the worker's log names the step. Network: see the node.",),
    ),
    Alert(
        name="StratosStepsStandStill",
        expr="stratos_requests_running > 0 and on (release, instance) rate(stratos_engine_steps_total[2m]) == 0",
        lasting="1m",
        severity="page",
        summary="An engine has work and makes no step.",
        meaning="Its step counter stood still for a minute while sequences run. Routers have taken it out by then.",
        check=(
            "Log of the worker; `/readyz` says why it is not ready.",
            "On a GPU: `nvidia-smi`, errors of the driver.",
        ),
        act=("Delete the pod; streams go on elsewhere. Keep its log for a fault.",),
    ),
    Alert(
        name="StratosEventLoopLate",
        expr="histogram_quantile(0.99, sum by (release, component, instance, le) "
        "(rate(stratos_event_loop_delay_seconds_bucket[5m]))) > 0.5",
        lasting="5m",
        summary="A process wakes its tasks more than half a second late.",
        meaning="Everything that it serves is late by as much: it has too little processor time, or does something "
        "long.",
        check=("Its processor time and throttling.", "Other processes on the node."),
        act=("Raise its cpu request, or add replicas.",),
    ),
    Alert(
        name="StratosKvPoolFull",
        expr="stratos_kv_utilization_ratio > 0.95",
        lasting="10m",
        summary="A worker's KV pool is nearly full.",
        meaning="Requests hold more than 95 % of the blocks. Admission stops at 0.9; above it running requests "
        "grow, and "
        "are preempted when nothing is left.",
        check=(
            "Dashboard Engine: preemptions, refusals.",
            "Lengths of prompts and outputs; are limits of tenants high?",
        ),
        act=("Add decode workers, raise `RUNNER__KV_POOL_BYTES`, or lower `max_tokens` limits (docs/tenants.md).",),
    ),
    Alert(
        name="StratosDraftsLose",
        expr="sum by (release) (rate(stratos_engine_draft_cost_seconds_total[15m]))"
        " > 0.02 + sum by (release) (rate(stratos_engine_draft_saved_seconds_total[15m]))",
        lasting="15m",
        summary="Drafts take more time of engines than they save.",
        meaning="Workers draft tokens that models then do not draw. No answer changes, and workers stop where drafts "
        "do not pay; this says that they did not stop enough.",
        check=("Dashboard Engine: drafts, saved and spent, and accepted by place and method.",),
        act=("Set `SCHEDULER__SPECULATION__METHOD` to `off`, or another method, and report the load.",),
    ),
    Alert(
        name="StratosPreemptionsMany",
        expr="sum by (release) (rate(stratos_preemptions_total[5m])) > 1",
        lasting="5m",
        summary="More than one sequence a second gives its KV blocks back.",
        meaning="Admission takes in more than fits: outputs are longer than they were, so work is done twice.",
        check=("Dashboard Engine: use of the KV pool, preemptions by kind.",),
        act=("Lower `SCHEDULER__KV_WATERMARK`, add workers, or give workers a host tier (docs/kv-memory.md).",),
    ),
    Alert(
        name="StratosHandoffsFail",
        expr=f"sum by (release) (rate({_FAILED_HANDOFFS}[10m]))"
        ' / (sum by (release) (rate(stratos_kv_handoffs_total{side="receiver"}[10m])) > 0) > 0.05'
        f" and on (release) sum by (release) (increase({_FAILED_HANDOFFS}[1h])) >= {FEWEST}",
        lasting="5m",
        summary="More than one hand-off in twenty fails.",
        meaning="Decode workers do not get KV from prefill workers and compute prompts themselves: answers are right, "
        "their first tokens late. Ten or more failed within an hour.",
        check=(
            "Dashboard Hand-off: outcomes; damaged frames.",
            "Logs of decode workers: `hand-off of request ... failed`.",
            "`kubectl get networkpolicy`: the KV port between workers.",
        ),
        act=(
            "Mend the network or the certificates between workers; `identity_mismatch` is a mix of builds or models.",
        ),
    ),
    Alert(
        name="StratosKvDamaged",
        expr="sum by (release, cause) (increase(stratos_kv_integrity_failures_total[15m])) > 0 "
        "or sum by (release) (increase(stratos_kv_damaged_requests_total[15m])) > 0 "
        "or sum by (release) (increase(stratos_kv_host_damaged_blocks_total[15m])) > 0",
        summary="KV failed a check.",
        meaning="A frame arrived damaged, a page had changed in host memory, or a row was not finite. KV was asked for "
        "or computed again; no token came of it. Networks and memory do this rarely: more than once a day is a fault "
        "of a machine. A request whose rows are never finite fails: that is a fault of the model or of an adapter.",
        check=(
            "Which worker: `stratos_kv_integrity_failures_total`, `stratos_kv_damaged_requests_total` and "
            "`stratos_kv_host_damaged_blocks_total` by instance.",
            "Memory errors of the node (EDAC).",
            "Log of the worker: it names the request.",
        ),
        act=("Drain the node if it happens again.",),
    ),
    Alert(
        name="StratosWorkerConvicted",
        expr="max by (release, instance) (stratos_worker_convicted) > 0",
        severity="page",
        summary="A worker computes something else than at its start, and has taken itself out.",
        meaning="Known tokens gave other bits, or a weight has changed in memory. The worker is not ready, has handed "
        "its streams back, and gives no KV away. What it computed since its last sound probe may be wrong: a minute at "
        "most where a probe found it, the time of a pass over the weights where that did.",
        check=(
            "`/readyz` of the worker, or its log: `this worker is out`. It names the weights, or both digests.",
            "Memory errors of the node (EDAC, `rasdaemon`), and what else ran there.",
            "Convicted at its start: the folder of the model, or the processor, gives other bits than we recorded.",
        ),
        act=(
            "Save the log, then end the worker (`kubectl delete pod`): a flipped bit is gone after a restart. "
            "Ten minutes after its conviction it ends by itself (`PROBER__LEAVE_AFTER_S`).",
            "Drain the node if it happens there again.",
        ),
    ),
    Alert(
        name="StratosBlockLedgerBroken",
        expr='sum by (release, instance) (increase(stratos_kv_ledger_audits_total{outcome="broken"}[1h])) > 0',
        severity="page",
        summary="A worker's KV block ledger does not add up.",
        meaning="A recount of an idle engine found a block that is owned twice or not at all. It is a bug.",
        check=("Log of the worker.",),
        act=("Drain the worker, let it restart, and open a fault with its log.",),
    ),
    Alert(
        name="StratosAdapterLoadsFail",
        expr='sum by (release) (increase(stratos_adapter_loads_total{outcome!="fetched"}[10m])) > 0',
        lasting="1m",
        summary="Adapters cannot be fetched.",
        meaning="The object store is away, an adapter is not what was registered, or a disk is full.",
        check=("`stratos_adapter_loads_total` by outcome.", "Log of the worker: it names the adapter and the reason."),
        act=("`adapter_mismatch`: register it again. Else mend the object store; what is on disk goes on working.",),
    ),
)
