"""Requests of a model, and of tenants and plans."""

from __future__ import annotations

from stratos.observe.panels import Dashboard, Panel, Query, quantiles, rate

MODEL = Dashboard(
    uid="stratos-model",
    title="StratosServe / Model",
    panels=(
        Panel(
            title="Requests per minute",
            text="By model and end.",
            queries=(
                Query("60 * " + rate("stratos_request_outcomes_total", "model, outcome"), "{{model}} {{outcome}}"),
            ),
            unit="reqpm",
        ),
        Panel(
            title="Time to the first token",
            text="From a prompt's start to its first token.",
            queries=quantiles("stratos_request_ttft_seconds", "model", "{{model}}"),
            unit="s",
        ),
        Panel(
            title="Time between tokens",
            text="Of one choice, as tokens reach the gateway.",
            queries=quantiles("stratos_request_itl_seconds", "model", "{{model}}"),
            unit="s",
        ),
        Panel(
            title="Duration",
            text="From the arrival to the last byte.",
            queries=quantiles("stratos_request_duration_seconds", "model", "{{model}}"),
            unit="s",
        ),
        Panel(
            title="Output tokens per second",
            text="By model and class.",
            queries=(Query(rate("stratos_output_tokens_total", "model, class"), "{{model}} class {{class}}"),),
        ),
        Panel(
            title="Tokens of a request",
            text="Its prompt and its answer, of all models.",
            queries=(
                *quantiles("stratos_request_prompt_tokens", "", "prompt"),
                *quantiles("stratos_request_output_tokens", "", "output"),
            ),
        ),
        Panel(
            title="Prompt tokens by source",
            text="Cached ones cost nothing, transferred ones a hand-off, recomputed ones were computed at the "
            "decode worker.",
            queries=(Query(rate("stratos_prompt_tokens_by_source_total", "source"), "{{source}}"),),
        ),
        Panel(
            title="Wait for a worker",
            text="Of requests that got one; 95 % waited at most this long. The model is its digest.",
            queries=(quantiles("stratos_router_wait_seconds", "class", "class {{class}}")[1],),
            unit="s",
        ),
        Panel(
            title="Roll-outs",
            text="Share of a model's sessions that its last roll-out sends to the new revision.",
            queries=(
                Query("max by (model, phase) (stratos_rollout_percent{@})", "{{model}} {{phase}}"),
                Query("max by (model) (stratos_rollout_written_percent{@})", "{{model}} in its alias"),
            ),
            unit="short",
        ),
        Panel(
            title="Roll-outs: beyond their hold",
            text="Time at a step that is over its hold, or whose weights are not written.",
            queries=(Query("max by (model) (stratos_rollout_overdue_seconds{@})", "{{model}}"),),
            unit="s",
        ),
        Panel(
            title="Roll-outs: drift",
            text="Mean difference of both revisions' log probabilities of a pinned text, in nats a token.",
            queries=(Query("max by (model) (stratos_rollout_drift_nats{@})", "{{model}}"),),
        ),
        Panel(
            title="Answers of the model auto",
            text="Each second, by the model that rules chose and the reason: rule, session, fallback, default, off.",
            queries=(Query(rate("stratos_auto_answers_total", "model, reason"), "{{model}} {{reason}}"),),
        ),
        Panel(
            title="Queue depth",
            text="Requests that wait for a worker.",
            queries=(Query("sum by (model) (stratos:queue_depth{@})", "{{model}}"),),
        ),
        Panel(
            title="Placements",
            text="Calls of Schedule by outcome; everything but placed is an error that a client may see.",
            queries=(Query(rate("stratos_router_placements_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            title="Answers by status",
            text="All routes of the API. 499: the client left.",
            queries=(Query("60 * " + rate("stratos_requests_total", "status"), "{{status}}"),),
            unit="reqpm",
        ),
    ),
)

TENANTS = Dashboard(
    uid="stratos-tenants",
    title="StratosServe / Tenants and plans",
    panels=(
        Panel(
            title="Output tokens per second",
            text="The largest tenants have series of their own; `other` is the rest.",
            queries=(Query(rate("stratos_output_tokens_total", "tenant"), "{{tenant}}"),),
        ),
        Panel(
            title="Prompt tokens per second",
            text="Of ended requests.",
            queries=(Query(rate("stratos_prompt_tokens_total", "tenant"), "{{tenant}}"),),
        ),
        Panel(
            title="Tokens of tenants without a series of their own",
            text="Part of the output tokens that `other` stands for: of tenants smaller than those with series. "
            "`OBSERVE__MAX_TENANT_SERIES` says how many these are.",
            queries=(
                Query(
                    rate("stratos_output_tokens_total", where='tenant="other"')
                    + " / "
                    + rate("stratos_output_tokens_total")
                    + " or vector(0)",
                    "other",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Requests refused by limits",
            text="429s by tenant and code: too many a minute or at once, more than a plan allows, a spent budget.",
            queries=(Query("60 * " + rate("stratos_requests_limited_total", "tenant, code"), "{{tenant}} {{code}}"),),
            unit="reqpm",
        ),
        Panel(
            title="Share of the devices",
            text="Device time by tenant, as a part of all device time.",
            queries=(
                Query(
                    rate("stratos_device_seconds_total", "tenant", 'state="tenant"')
                    + " / ignoring (tenant) group_left () "
                    + rate("stratos_device_seconds_total"),
                    "{{tenant}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Promised times that were kept",
            text="By plan, over half an hour.",
            queries=(Query("min by (plan, promise) (stratos:promises_kept:ratio_rate30m{@})", "{{plan}} {{promise}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Budget used",
            text="Part of the month's budget that is spent, as the gateways know it.",
            queries=(Query("max by (tenant) (stratos_budget_used_ratio{@})", "{{tenant}}"),),
            unit="percentunit",
        ),
        Panel(
            title="Usage ledger",
            text="Entries written, by outcome.",
            queries=(Query(rate("stratos_ledger_entries_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            title="Entries that wait",
            text="Bytes on disk; entries in memory are those that the disk did not take. Entries in Redis are in no "
            "segment yet.",
            queries=(
                Query("sum (stratos_ledger_spool_bytes{@})", "bytes on disk"),
                Query("max (stratos_ledger_unsealed_entries{@})", "entries in Redis"),
                Query("sum (stratos_ledger_pending{@})", "entries in memory"),
            ),
        ),
        Panel(
            title="Known tenants, keys and adapters",
            text="Records of the gateways' snapshots.",
            queries=(Query("max (stratos_snapshot_records{@})", "records"),),
            kind="stat",
        ),
    ),
)
