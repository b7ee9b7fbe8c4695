"""Engines of the workers, and hand-offs between them."""

from __future__ import annotations

from stratos.observe.panels import WINDOW, Dashboard, Panel, Query, quantiles, rate

ENGINE = Dashboard(
    uid="stratos-engine",
    title="StratosServe / Engine",
    panels=(
        Panel(
            title="Decode throughput",
            text="Tokens that each worker samples a second.",
            queries=(Query("sum by (instance) (stratos_decode_tokens_per_second{@})", "{{instance}}"),),
        ),
        Panel(
            title="Computed tokens per second",
            text="Tokens that went through the model, prompts included.",
            queries=(Query(rate("stratos_engine_computed_tokens_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            title="Duration of a step",
            text="It bounds the time between tokens.",
            queries=quantiles("stratos_engine_step_seconds"),
            unit="s",
        ),
        Panel(
            title="Batch size",
            text="Mean number of sequences and prefill jobs in a step.",
            queries=(
                Query(
                    f"{rate('stratos_engine_batch_size_sum', 'instance')}"
                    f" / ({rate('stratos_engine_batch_size_count', 'instance')} > 0)",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Drafts: time saved and spent",
            text="Parts of a second of each worker. Where drafts do not pay, both go to 0.",
            queries=(
                Query(rate("stratos_engine_draft_saved_seconds_total", "instance"), "{{instance}} saved"),
                Query(rate("stratos_engine_draft_cost_seconds_total", "instance"), "{{instance}} spent"),
            ),
        ),
        Panel(
            title="Drafts: accepted part by place",
            text="Of drafted tokens; a draft ends at its first wrong one, so later places have less.",
            queries=(
                Query(
                    f"{rate('stratos_engine_accepted_tokens_total', 'method, place')}"
                    f" / {rate('stratos_engine_drafted_tokens_total', 'method, place')} or vector(0)",
                    "{{method}} {{place}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Running and waiting",
            text="Sequences in the batch, and the short queue at the worker.",
            queries=(
                Query("sum by (instance) (stratos_requests_running{@})", "{{instance}} running"),
                Query("sum by (instance) (stratos_requests_waiting{@})", "{{instance}} waiting"),
            ),
        ),
        Panel(
            title="Use of the KV pool",
            text="Part that requests hold. Admission stops at 0.9; what is only cached counts as free.",
            queries=(Query("max by (instance, device) (stratos_kv_utilization_ratio{@})", "{{instance}} {{device}}"),),
            unit="percentunit",
        ),
        Panel(
            title="KV blocks by state",
            text="The sum over the states is the pool.",
            queries=(Query("sum by (state) (stratos_kv_blocks{@})", "{{state}}"),),
        ),
        Panel(
            title="Cached blocks that made room",
            text="Blocks a second, by tier. Where `device` grows and `host` does not, host memory keeps them; where "
            "both do, prefixes are computed again.",
            queries=(Query(rate("stratos_kv_evicted_blocks_total", "tier"), "{{tier}}"),),
        ),
        Panel(
            title="Kept prompts",
            text="Blocks that clients asked to keep, and what ends that: `expired` is their time. With `pressure` live "
            "requests took them; with `quota` or `pool` they asked for more than plan or worker let them keep.",
            queries=(
                Query("sum by (tier) (stratos_kv_pinned_blocks{@})", "{{tier}}"),
                Query(rate("stratos_kv_pins_dropped_total", "tier, reason"), "{{tier}} {{reason}} a second"),
            ),
        ),
        Panel(
            title="Preemptions and refusals",
            text="Sequences that gave their blocks back, and waits that met a full pool.",
            queries=(
                Query(rate("stratos_preemptions_total", "kv"), "{{kv}}"),
                Query(rate("stratos_admission_refusals_total"), "refused"),
            ),
        ),
        Panel(
            title="Use of the memory's bandwidth",
            text="Weights and KV that steps had to read, next to the bandwidth that was set: a lower bound.",
            needs_gpu=True,
            queries=(
                Query(
                    f"sum by (instance) (rate(stratos_memory_read_bytes_total{{@}}[{WINDOW}]))"
                    " / max by (instance) (stratos_memory_peak_bytes_per_second{@})",
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Use of the processor's peak",
            text="Operations of products with weights in the time of steps, next to the peak that was set: a lower "
            "bound. Prompts come near it; decode is bound by the memory.",
            needs_gpu=True,
            queries=(
                Query(
                    f"sum by (instance) (rate(stratos_engine_operations_total{{@}}[{WINDOW}]))"
                    f" / clamp_min(sum by (instance) (rate(stratos_engine_step_seconds_sum{{@}}[{WINDOW}])), 1e-9)"
                    " / max by (instance) (stratos_engine_peak_operations_per_second{@})",
                    "{{instance}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            title="Devices: whose time",
            text="Tenants', the platform's own, or idle.",
            queries=(Query(rate("stratos_device_seconds_total", "state"), "{{state}}"),),
        ),
        Panel(
            title="Adapters: where they were found",
            text="`store` costs a download, `disk` a load; many of them mean that slots or disk are too small.",
            queries=(Query(rate("stratos_adapter_requests_total", "found"), "{{found}}"),),
        ),
        Panel(
            title="Adapters in engines",
            text="And what they take on disk.",
            queries=(
                Query("sum by (instance) (stratos_adapters_resident{@})", "{{instance}}"),
                Query("sum (stratos_adapter_disk_bytes{@}) / 1048576", "MiB on disk"),
            ),
        ),
        Panel(
            title="Models: seconds of the last start",
            text="`fetch` is the stream from the registry, near 0 where the cache of the node had the model; `load` "
            "reads the files into the engine.",
            queries=(Query("max by (instance, stage) (stratos_model_load_seconds{@})", "{{instance}} {{stage}}"),),
            unit="s",
        ),
        Panel(
            title="Models: bytes from the registry",
            text="Bytes a second that starting workers stream. Failures are asked again; a start that has none for a "
            "minute ends.",
            queries=(
                Query(rate("stratos_model_fetched_bytes_total", "instance"), "{{instance}}"),
                Query(rate("stratos_model_fetch_failures_total", "instance"), "{{instance}} failures"),
            ),
            unit="Bps",
        ),
        Panel(
            title="GPU: memory",
            text="Used and whole memory of each worker's GPU.",
            queries=(Query("max by (instance, gpu, state) (stratos_gpu_memory_bytes{@})", "{{instance}} {{state}}"),),
            unit="bytes",
            needs_gpu=True,
        ),
        Panel(
            title="GPU: utilization",
            text="Part of the time in which a kernel ran; a full GPU may still wait for memory.",
            queries=(Query("max by (instance, gpu) (stratos_gpu_utilization_ratio{@})", "{{instance}} GPU {{gpu}}"),),
            unit="percentunit",
            needs_gpu=True,
        ),
        Panel(
            title="GPU: power",
            text="Power that each GPU draws.",
            queries=(Query("max by (instance, gpu) (stratos_gpu_power_watts{@})", "{{instance}} GPU {{gpu}}"),),
            unit="watt",
            needs_gpu=True,
        ),
        Panel(
            title="GPU: temperature",
            text="Near its limit a GPU slows down.",
            queries=(Query("max by (instance, gpu) (stratos_gpu_temperature_celsius{@})", "{{instance}} GPU {{gpu}}"),),
            unit="celsius",
            needs_gpu=True,
        ),
    ),
)

HANDOFF = Dashboard(
    uid="stratos-handoff",
    title="StratosServe / Hand-off",
    panels=(
        Panel(
            title="KV on the wire",
            text="Payload bytes, repeats included.",
            queries=(
                Query(rate("stratos_kv_transfer_bytes_total", "direction, transport"), "{{direction}} {{transport}}"),
            ),
            unit="Bps",
        ),
        Panel(
            title="Ended legs",
            text="Committed ones are KV that a request used.",
            queries=(Query(rate("stratos_kv_handoffs_total", "side, outcome"), "{{side}} {{outcome}}"),),
        ),
        Panel(
            title="Stages",
            text="95 % of committed hand-offs took at most this long in each stage.",
            queries=(quantiles("stratos_kv_handoff_stage_seconds", "stage", "{{stage}}")[1],),
            unit="s",
        ),
        Panel(
            title="Paths of prompts",
            text="Where prompts were computed.",
            queries=(Query(rate("stratos_prefills_total", "path"), "{{path}}"),),
        ),
        Panel(
            title="Prompts computed at decode workers",
            text="By reason; fallbacks are hand-offs that failed.",
            queries=(Query(rate("stratos_local_prefills_total", "reason"), "{{reason}}"),),
        ),
        Panel(
            title="Damaged KV",
            text="Frames that failed a check, and requests that computed their KV again. No token came of it; more "
            "than a few mean a bad link or bad memory.",
            queries=(
                Query(rate("stratos_kv_integrity_failures_total", "cause"), "frame: {{cause}}"),
                Query(rate("stratos_kv_damaged_requests_total", "release"), "requests"),
                Query(rate("stratos_kv_host_damaged_blocks_total", "release"), "host blocks"),
            ),
        ),
        Panel(
            title="Staging slots",
            text="Quarantined ones wait for their sender.",
            queries=(Query("sum by (state) (stratos_kv_staging_slots{@})", "{{state}}"),),
        ),
        Panel(
            title="Host tier",
            text="KV blocks in host memory by state; all 0 without one.",
            queries=(
                Query("sum by (state) (stratos_kv_host_blocks{@})", "{{state}}"),
                Query(rate("stratos_kv_swapped_blocks_total", "direction"), "{{direction}} a second"),
            ),
        ),
        Panel(
            title="Disk tier",
            text="KV blocks a second that went to disk and came from there, and why others did not; all 0 without one.",
            queries=(
                Query(rate("stratos_kv_disk_moved_blocks_total", "direction"), "{{direction}}"),
                Query(rate("stratos_kv_disk_not_loaded_blocks_total", "reason"), "not loaded: {{reason}}"),
                Query(rate("stratos_kv_disk_not_kept_blocks_total", "reason"), "not kept: {{reason}}"),
            ),
        ),
    ),
)
