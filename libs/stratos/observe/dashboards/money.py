"""Costs of tokens, from the price of a device's hour that workers are given."""

from __future__ import annotations

from stratos.observe.panels import Dashboard, Panel, Query, rate

COSTS = Dashboard(
    uid="stratos-costs",
    title="StratosServe / Costs",
    panels=(
        Panel(
            title="Cost of a million output tokens",
            text="Hourly price of the model's workers, idle time included, over the tokens that they made.",
            queries=(Query("max by (model) (stratos:cost_per_million_output_tokens{@})", "{{model}}"),),
            kind="stat",
            has_trend=True,
        ),
        Panel(
            title="Requests for one unit of the currency",
            text="Finished requests.",
            queries=(Query("max by (model) (stratos:requests_per_currency_unit{@})", "{{model}}"),),
            kind="stat",
            has_trend=True,
        ),
        Panel(
            title="Price of the running workers",
            text="For an hour, by model and role.",
            queries=(Query("sum by (model, role) (stratos_device_hour_price{@})", "{{model}} {{role}}"),),
        ),
        Panel(
            title="Busy devices",
            text="Part of device time in which a step ran. What is idle is paid as well.",
            queries=(
                Query(
                    rate("stratos_device_seconds_total", where='state!="idle"')
                    + " / "
                    + rate("stratos_device_seconds_total"),
                    "busy",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Output tokens of a second of busy device",
            text="Falls with small batches.",
            queries=(
                Query(
                    rate("stratos_engine_output_tokens_total")
                    + " / "
                    + rate("stratos_device_seconds_total", where='state!="idle"'),
                    "tokens",
                ),
            ),
        ),
        Panel(
            title="Prompt tokens that cost nothing",
            text="Part of prompt tokens that a prefix cache had.",
            queries=(
                Query(
                    rate("stratos_prompt_tokens_by_source_total", where='source="cached"')
                    + " / "
                    + rate("stratos_prompt_tokens_by_source_total"),
                    "cached",
                ),
            ),
            unit="percentunit",
        ),
    ),
)
