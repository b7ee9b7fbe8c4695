"""The whole platform at a glance, its scaling, and its service level."""

from __future__ import annotations

from stratos.core.requests.limits import BATCH_CLASS
from stratos.observe.panels import WINDOW, Dashboard, Panel, Query, quantiles, rate

OBJECTIVE = 0.999
"""Part of requests that must not fail by the platform's fault."""

FLEET = Dashboard(
    uid="stratos-fleet",
    title="StratosServe / Fleet",
    panels=(
        Panel(
            title="Requests per minute",
            text="Ended requests for tokens or vectors, all ends together.",
            queries=(Query("60 * " + rate("stratos_request_outcomes_total"), "requests"),),
            unit="reqpm",
            kind="stat",
            has_trend=True,
        ),
        Panel(
            title="P95 of the time to the first token",
            text="Over all models. From a prompt's start to its first token.",
            queries=(quantiles("stratos_request_ttft_seconds")[1],),
            unit="s",
            kind="stat",
            has_trend=True,
        ),
        Panel(
            title="Active requests",
            text="Requests that are open at the gateways now.",
            queries=(Query("sum (stratos_requests_open{@})", "open"),),
            kind="stat",
            has_trend=True,
        ),
        Panel(
            title="Devices",
            text="Workers by the device that they compute on.",
            queries=(Query("count by (device) (stratos_worker_info{@})", "{{device}}"),),
            kind="stat",
        ),
        Panel(
            title="Failed requests",
            text="Part of finished and failed requests that failed by the platform's fault. Errors in streams count, "
            "the lowest class does not.",
            queries=(
                Query(
                    rate("stratos_request_outcomes_total", where=f'class!="{BATCH_CLASS}", outcome="failed"')
                    + " / "
                    + rate(
                        "stratos_request_outcomes_total", where=f'class!="{BATCH_CLASS}", outcome=~"finished|failed"'
                    ),
                    "failed",
                ),
            ),
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            title="Processes that do not answer",
            text="Targets whose last scrape failed. Anything but 0 is worth a look.",
            queries=(Query("count (up{@} == 0) or 0 * count (up{@})", "down"),),
            kind="stat",
        ),
        Panel(
            title="Requests by end",
            text="Refused: by the client's fault. Failed: by ours. Left: the client ended the connection.",
            queries=(Query("60 * " + rate("stratos_request_outcomes_total", "outcome"), "{{outcome}}"),),
            unit="reqpm",
        ),
        Panel(
            title="Duration of requests",
            text="From the arrival to the last byte.",
            queries=quantiles("stratos_request_duration_seconds"),
            unit="s",
        ),
        Panel(
            title="Tokens per second",
            text="Output tokens as they reach the gateways, while streams run, and prompt tokens of ended requests.",
            queries=(
                Query(rate("stratos_output_tokens_total"), "output"),
                Query(rate("stratos_prompt_tokens_total"), "prompt"),
            ),
        ),
        Panel(
            title="Queue",
            text="Requests that wait at the routers for a worker, by class.",
            queries=(Query("sum by (class) (stratos_router_queue_depth{@})", "class {{class}}"),),
        ),
        Panel(
            title="Live workers",
            text="As the routers see them. Several routers must agree.",
            queries=(
                Query('max by (role) (stratos_router_workers{@, state="live"})', "{{role}}"),
                Query('max by (role) (stratos_router_workers{@, state="out"})', "{{role}} out"),
                Query('max by (role) (stratos_router_workers{@, state="asleep"})', "{{role}} asleep"),
                Query('max by (role) (stratos_router_workers{@, state="standby"})', "{{role}} standby"),
            ),
        ),
        Panel(
            title="Delay of event loops",
            text="99 % of wake-ups were at most this late; what a process serves waits that long.",
            queries=(quantiles("stratos_event_loop_delay_seconds", "component", "{{component}}")[2],),
            unit="s",
        ),
        Panel(
            title="Processor",
            text="Cores in use by kind of process.",
            queries=(Query(rate("process_cpu_seconds_total", "component"), "{{component}}"),),
        ),
        Panel(
            title="Memory of processes",
            text="Resident memory by kind of process, shared pages counted in each.",
            queries=(Query("sum by (component) (process_resident_memory_bytes{@})", "{{component}}"),),
            unit="bytes",
        ),
        Panel(
            title="Certificates: time left",
            text="Until the first certificate ends; only where there are certificates.",
            queries=(
                Query(
                    'min by (component) ({__name__=~"stratos_(tls|http)_certificate_expiry_timestamp_seconds", @})'
                    " - time()",
                    "{{component}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            title="Snapshot: age",
            text="Since Redis confirmed tenants, keys and adapters; revocations are as late as this.",
            queries=(Query("max (stratos_snapshot_age_seconds{@})", "oldest"),),
            unit="s",
        ),
        Panel(
            title="Redis: memory in use",
            text="Part of its maxmemory; from 80 % on usage waits on gateways' disks. `file failed` at 1: its disk "
            "takes no more, and it refuses writes.",
            queries=(
                Query("max (stratos_redis_memory_ratio{@})", "memory"),
                Query("max (stratos_redis_file_failed{@})", "file failed"),
            ),
            unit="percentunit",
        ),
    ),
)

_ACTS = " and on (release, instance) stratos_autoscaler_active{@} == 1"
"""The autoscaler that acts: what another one showed last is old."""

AUTOSCALER = Dashboard(
    uid="stratos-autoscaler",
    title="StratosServe / Autoscaler",
    panels=(
        Panel(
            title="Queue depth by model",
            text="What pools are scaled by.",
            queries=(Query("sum by (model) (stratos:queue_depth{@})", "{{model}}"),),
        ),
        Panel(
            title="Prompt tokens that wait",
            text="Sum over routers and classes.",
            queries=(Query("sum (stratos_router_queued_tokens{@})", "tokens"),),
        ),
        Panel(
            title="Age of the oldest waiting request",
            text="By class. After `QUEUE__TTL_S` (30 s) a request is refused, but for one that wakes its model.",
            queries=(Query("max by (class) (stratos_router_queue_oldest_seconds{@})", "class {{class}}"),),
            unit="s",
        ),
        Panel(
            title="Workers wanted and there",
            text="Where the two stay apart, something blocks: a limit, a full machine, a start that fails.",
            queries=(
                Query(
                    f"max by (model, role) (stratos_autoscaler_desired_workers{{@}}{_ACTS})",
                    "{{model}} {{role}} wanted",
                ),
                Query(
                    f'max by (model, role) (stratos_autoscaler_workers{{@, state="live"}}{_ACTS})',
                    "{{model}} {{role}} live",
                ),
            ),
        ),
        Panel(
            title="Workers by state",
            text="As the autoscaler counts them.",
            queries=(Query(f"sum by (role, state) (stratos_autoscaler_workers{{@}}{_ACTS})", "{{role}} {{state}}"),),
        ),
        Panel(
            title="Decisions",
            text="By direction and reason; most of them keep what there is.",
            queries=(
                Query(
                    rate("stratos_autoscaler_decisions_total", "role, direction, reason"),
                    "{{role}} {{direction}}: {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Questions of HPAs",
            text="For numbers of the release, by outcome; only where the autoscaler serves them. Without answers pools "
            "keep their size.",
            queries=(
                Query(
                    rate("stratos_autoscaler_metrics_api_questions_total", "outcome") + " or vector(0)", "{{outcome}}"
                ),
            ),
        ),
        Panel(
            title="Turns on shared devices",
            text="Changes of the model that has a device, and the part of the time that they take, in which nothing is "
            "computed there. Only where models share one.",
            queries=(
                Query(rate("stratos_autoscaler_turns_total", "outcome"), "{{outcome}}"),
                Query(rate("stratos_autoscaler_turn_change_seconds_sum"), "part of the time"),
            ),
        ),
        Panel(
            title="Active autoscalers",
            text="One acts, the others wait. 0 means that nothing is scaled.",
            queries=(Query("sum (stratos_autoscaler_active{@})", "active"),),
            kind="stat",
        ),
        Panel(
            title="Routers that did not answer",
            text="Their queues are not counted, so nothing is drained.",
            queries=(Query("max (stratos_autoscaler_routers_missing{@})", "missing"),),
            kind="stat",
        ),
    ),
)


def _burn(window: str) -> Query:
    return Query(f"max (stratos:request_errors:ratio_rate{window}{{@}}) / {1 - OBJECTIVE:.3g}", window)


def _window_p99(promise: str) -> Query:
    series = f'stratos_promise_window_p99_seconds{{@, promise="{promise}"}}'
    return Query(f"max by (tenant, plan) ({series})", "{{tenant}} {{plan}}")


SERVICE_LEVEL = Dashboard(
    uid="stratos-slo",
    title="StratosServe / Service level",
    panels=(
        Panel(
            title="Success over three days",
            text=f"Part of requests that did not fail by the platform's fault; the objective is {OBJECTIVE:.1%}. The "
            "lowest class is left out here and below.",
            queries=(Query("1 - max (stratos:request_errors:ratio_rate3d{@})", "success"),),
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            title="Error budget left, three days",
            text="1 is all of it, 0 none, and below 0 the objective is missed.",
            queries=(
                Query(f"1 - max (stratos:request_errors:ratio_rate3d{{@}}) / {1 - OBJECTIVE:.3g}", "budget left"),
            ),
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            title="Burn rate",
            text="How many times faster than allowed the error budget goes. 14.4 over an hour raises a page.",
            queries=tuple(_burn(window) for window in ("5m", "30m", "1h", "6h")),
        ),
        Panel(
            title="Promised times that were kept",
            text="Of prompts whose plan promises a time to the first token, or between tokens.",
            queries=(Query("min by (plan, promise) (stratos:promises_kept:ratio_rate30m{@})", "{{plan}} {{promise}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Promised p99 to the first token",
            text="Measured in the running window (5 minutes), of tenants whose plan promises one (`ttft_p99_ms`).",
            queries=(_window_p99("ttft"),),
            unit="s",
        ),
        Panel(
            title="Promised p99 between tokens",
            text="As before, of the single times between tokens (`itl_p99_ms`).",
            queries=(_window_p99("itl"),),
            unit="s",
        ),
        Panel(
            title="Windows that missed a promised p99",
            text="In the last hour; each earns the plan's credit. A window is counted a minute after its end.",
            queries=(
                Query(
                    'sum by (tenant, plan) (increase(stratos_promise_windows_total{@, outcome="missed"}[1h]))',
                    "{{tenant}} {{plan}}",
                ),
            ),
        ),
        Panel(
            title="Credits of such windows",
            text="In the last day, in units of the currency. Statements have what counts, late entries included.",
            queries=(
                Query(
                    "sum by (tenant, plan) (increase(stratos_promise_window_credit_total{@}[1d]))",
                    "{{tenant}} {{plan}}",
                ),
            ),
        ),
        Panel(
            title="Time to the first token, p95",
            text="By model.",
            queries=(Query("max by (model) (stratos:ttft_seconds:p95_5m{@})", "{{model}}"),),
            unit="s",
        ),
        Panel(
            title="Attempts that were repeated",
            text="Recoveries of running requests by cause: what clients did not notice.",
            queries=(Query(f"sum by (cause) (rate(stratos_recoveries_total{{@}}[{WINDOW}]))", "{{cause}}"),),
        ),
        Panel(
            title="Records of streams",
            text="Each second, by what happened: `taken` beyond `queued` are streams whose gateway was lost. "
            "Tokens are of answers that ended early.",
            queries=(
                Query(f"sum by (event) (rate(stratos_stream_records_total{{@}}[{WINDOW}]))", "{{event}}"),
                Query(f"sum by (event) (rate(stratos_continuations_total{{@}}[{WINDOW}]))", "token {{event}}"),
            ),
        ),
        Panel(
            title="Lines of batches",
            text="Answered each second, deferred where workers had no room for them, and how many may run at a time.",
            queries=(
                Query(f"sum by (outcome) (rate(stratos_batch_lines_total{{@}}[{WINDOW}]))", "{{outcome}}"),
                Query("sum(stratos_batch_lines_limit{@})", "may run"),
            ),
        ),
        Panel(
            title="Lines of batches that wait",
            text="Of all open batches, and those of them that are due within an hour to keep every window.",
            queries=(
                Query("max(stratos_batch_lines_waiting{@})", "lines"),
                Query("max(stratos_batch_lines_due{@})", "due within an hour"),
            ),
        ),
    ),
)
