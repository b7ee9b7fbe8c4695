"""Alerts on what clients notice: errors, promised times, queues."""

from __future__ import annotations

from stratos.core.requests.limits import BATCH_CLASS
from stratos.observe.alerts.alert import AWAKENED, FEWEST, Alert
from stratos.observe.recording import judged


def _burns(factor: str, long: str, short: str) -> str:
    errors = "stratos:request_errors:ratio_rate"
    counted = f"sum by (release, model) (increase({judged('failed')}[{long}]))"
    return (
        f"{errors}{long} > {factor} * 0.001 and {errors}{short} > {factor} * 0.001"
        f" and on (release, model) {counted} >= {FEWEST}"
    )


_PLACED = f'stratos_router_placements_total{{class!="{BATCH_CLASS}"}}'
_SHED = f'stratos_router_placements_total{{class!="{BATCH_CLASS}", outcome=~"overloaded|queue_timeout"}}'


REQUEST_ALERTS = (
    Alert(
        name="StratosErrorBudgetBurnsFast",
        expr=_burns("14.4", "1h", "5m"),
        lasting="2m",
        severity="page",
        summary="More than 1.4 % of requests fail; the error budget of a month would be gone in two days.",
        meaning="Over an hour and over the last five minutes, requests failed by the platform's fault 14.4 times more "
        "often than the objective of 99.9 % allows, and at least ten of them. Errors within streams count; what "
        "clients do wrong does not. Nor does the lowest class: it is refused first where room is short.",
        check=(
            "Dashboard Fleet: which outcome, since when; processes that do not answer.",
            "Access log of the gateways: `outcome=failed`, and the code in `error`.",
            "Router: `stratos_router_placements_total` by outcome (`overloaded`, `queue_timeout` are want of workers).",
        ),
        act=(
            "`worker_lost`: see StratosWorkersFlap and the workers' logs.",
            "`overloaded` or `queue_timeout`: add workers, see StratosQueueWaitsLong.",
            "After an upgrade: go back with `helm rollback`.",
        ),
    ),
    Alert(
        name="StratosErrorBudgetBurnsSlowly",
        expr=_burns("6", "6h", "30m"),
        lasting="15m",
        summary="More than 0.6 % of requests fail for hours; the error budget of a month would be gone in five days.",
        meaning="As StratosErrorBudgetBurnsFast, slower: six times what the objective allows, over six hours and over "
        "the last half an hour.",
        check=("As for StratosErrorBudgetBurnsFast, over the last day.",),
        act=("Find the error code that makes most of it in the access log and open a fault for it.",),
    ),
    Alert(
        name="StratosPromisesMissed",
        expr="stratos:promises_kept:ratio_rate30m < 0.95"
        " and on (release, plan, promise) sum by (release, plan, promise)"
        f' (increase(stratos_promises_total{{outcome="missed"}}[30m])) >= {FEWEST}',
        lasting="5m",
        summary="A plan's promised time is missed for more than one prompt in twenty.",
        meaning="Plans may promise a time to the first token (`ttft`) or between tokens (`itl`), and credits are given "
        "where it is missed. The labels say which plan and which promise; ten were missed in half an hour at least.",
        check=(
            "Dashboard Model: times by model; the wait for a worker is part of the time to the first token.",
            "Dashboard Engine: duration of a step and batch size for `itl`.",
        ),
        act=(
            "`ttft` with a queue: add prefill or decode workers.",
            "`itl` without one: lower `SCHEDULER__STEP_TIME_BUDGET_MS` or `SCHEDULER__MAX_NUM_SEQS`.",
            "Neither: promise what the hardware can do (docs/tenants.md).",
        ),
    ),
    Alert(
        name="StratosQueueWaitsLong",
        expr=f"max by (release, model) (stratos:queue_oldest_seconds) > 20 unless on (release, model) {AWAKENED}",
        lasting="2m",
        severity="page",
        summary="Requests of a model wait for more than twenty seconds for a worker.",
        meaning="Its oldest request has had no placement for 20 s, for two minutes on end: there are too few workers, "
        "or none that may take it. After `QUEUE__TTL_S` (30 s) requests are refused. The lowest class is left out, "
        "since it waits for all others, and so is a model that slept within the last quarter of an hour.",
        check=(
            "`stratos status`: live workers, and why others are out.",
            "`stratos_router_rejections_total`: `kv_room` and `batch_slots` are load, `features` and `protocol` an "
            "upgrade.",
            "Dashboard Autoscaler: workers wanted and there.",
        ),
        act=(
            "Load: raise the pool's maximum, or scale it by hand.",
            "Workers wanted and not there: look at their pods' events, at quotas and at devices.",
        ),
    ),
    Alert(
        name="StratosQueueFull",
        expr=f"sum by (release) (rate({_SHED}[5m])) / (sum by (release) (rate({_PLACED}[5m])) > 0) > 0.01"
        f" and on (release) sum by (release) (increase({_SHED}[5m])) >= {FEWEST}",
        lasting="2m",
        severity="page",
        summary="More than one request in a hundred is refused because queues are full or its time is over.",
        meaning="Routers answered `overloaded` or `queue_timeout`: clients get 503, or go to the external endpoint "
        "where there is one. The lowest class is left out: it is refused first, and lines of batches come again.",
        check=("As for StratosQueueWaitsLong.", "Dashboard Tenants: one tenant's flood, or the load of all."),
        act=(
            "Add workers, or lower what a tenant may have open at once (docs/tenants.md).",
            "A short peak: raise `QUEUE__*` of the router and the requests' time to live.",
        ),
    ),
    Alert(
        name="StratosTenantLimited",
        expr="sum by (release, tenant, code) (increase(stratos_requests_limited_total"
        f'{{code!="insufficient_quota", tenant!="other"}}[5m])) >= {FEWEST}',
        lasting="30m",
        summary="A tenant has been refused by its own limits for half an hour.",
        meaning="Ten requests or more in every five minutes got 429. The code says which limit: `rate_limit_exceeded` "
        "(requests or tokens a minute), `concurrency_limit` (sequences at once), `request_over_rate_limit` (one "
        "request above what the plan ever allows). A budget that is spent (`insufficient_quota`) raises nothing: it "
        "stays spent to the end of its month. Tenants without a series of their own (`other`) are left out, since "
        "many of them make ten. The platform works as it should.",
        check=(
            "Dashboard Tenants: requests refused by limits, by code.",
            "Its plan (docs/tenants.md), and what it spent.",
        ),
        act=("Talk to the tenant: a larger plan, another budget, or a client that minds `retry-after`.",),
    ),
    Alert(
        name="StratosBatchLate",
        expr="min by (release) (stratos_batch_window_left_seconds) < 7200",
        lasting="5m",
        summary="The window of a batch ends within two hours.",
        meaning="Lines that are not computed until then end as `batch_expired`. Batches wait for all other requests, "
        "so there was little room for them.",
        check=(
            "`stratos_batch_lines_waiting`, and how fast `stratos_batch_lines_total` rises.",
            "`deferred` says that workers had no room; queue depth and use of the KV pool say of what.",
        ),
        act=("Add decode workers until it has ended, or tell its tenant.",),
    ),
    Alert(
        name="StratosBatchesBehind",
        expr="max by (release) (stratos_batch_lines_due offset 1h) > sum by (release) "
        '(increase(stratos_batch_lines_total{outcome!="deferred"}[1h])) '
        "and max by (release) (stratos_batch_lines_due) > 0",
        lasting="10m",
        summary="Batches go on more slowly than their windows need.",
        meaning="Fewer lines were answered in the last hour than were due within it, which is what each batch needs to "
        "end in time by going on evenly. If it stays so, lines end as `batch_expired`, which may be hours from now.",
        check=(
            "`stratos_batch_lines_due` and `stratos_batch_lines_waiting`: a batch may just have come, or many.",
            "`stratos_batch_lines_limit`: low where workers refuse lines, or clients' requests would wait for them.",
        ),
        act=("Add decode workers, spot workers first, or let the planner scale by the backlog.",),
    ),
    Alert(
        name="StratosPromptConvicted",
        expr="sum by (release) (increase(stratos_convictions_total[15m])) > 0",
        summary="A prompt is refused for ten minutes, because workers were lost as it began.",
        meaning="Two workers were lost as each of them began the same prompt. For `CONVICTIONS__TTL_S` it is not tried "
        "again, and gets 503 `prompt_refused`; other requests go on.",
        check=(
            "Log of the gateway: the request id of the conviction.",
            "Logs of the workers that were lost, at that time.",
        ),
        act=("Try the prompt on a worker of its own and open a fault with the worker's log.",),
    ),
)
