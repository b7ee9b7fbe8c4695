"""Settings that people set: the first page of the configuration shows these alone, the other page shows all."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSettings:
    """A table of the first page."""

    title: str
    prefixes: tuple[str, ...]
    """Of the variables, as the page shows them."""
    module: str
    """Where the settings class is: ``module:Class``."""
    names: tuple[str, ...]


FIRST = (
    FirstSettings(
        title="All services",
        prefixes=("STRATOS_<SERVICE>_",),
        module="stratos.rpc.settings:ServiceSettings",
        names=("LOG_LEVEL", "LOG_FORMAT", "METRICS_LISTEN", "OTLP_ENDPOINT", "DRAIN_TIMEOUT_S"),
    ),
    FirstSettings(
        title="Gateway",
        prefixes=("STRATOS_GATEWAY_",),
        module="stratos_gateway.settings:GatewaySettings",
        names=(
            "HTTP_LISTEN",
            "ROUTER_ADDRESSES",
            "REDIS_URL",
            "KEY_PEPPER",
            "MODEL__PATH",
            "MODEL__MAX_INPUT_TOKENS",
            "MODEL__DEFAULT_MAX_TOKENS",
            "REQUESTS__MAX_OPEN",
            "REQUESTS__MAX_OPEN_PER_TENANT",
            "ADMIN__LISTEN",
            "OIDC__ISSUERS",
            "EDGE__TRUSTED_PROXIES",
        ),
    ),
    FirstSettings(
        title="Router",
        prefixes=("STRATOS_ROUTER_",),
        module="stratos_router.settings:RouterSettings",
        names=("DISCOVERY", "QUEUE__MAX_REQUESTS", "QUEUE__TTL_S", "POLICIES__DEFAULT"),
    ),
    FirstSettings(
        title="Prefill and decode workers",
        prefixes=("STRATOS_PREFILL_WORKER_", "STRATOS_DECODE_WORKER_"),
        module="stratos.worker.settings:WorkerSettings",
        names=(
            "DEVICE",
            "RUNNER__MODEL_PATH",
            "RUNNER__DTYPE",
            "RUNNER__KV_DTYPE",
            "RUNNER__KV_POOL_BYTES",
            "RUNNER__MAX_MODEL_LEN",
            "RUNNER__GPU_MEMORY_UTILIZATION",
            "RUNNER__HOST_POOL_BYTES",
            "RUNNER__NUM_THREADS",
            "RUNNER__MAX_RESIDENT_ADAPTERS",
            "SCHEDULER__MAX_NUM_SEQS",
            "SCHEDULER__MAX_NUM_BATCHED_TOKENS",
            "TRANSPORT__NAMES",
            "HANDOFF__LOCAL_PREFILL_MAX_TOKENS",
            "OBJECT_STORE__URL",
        ),
    ),
    FirstSettings(
        title="Adapter registry",
        prefixes=("STRATOS_LORA_REGISTRY_",),
        module="stratos_lora_registry.settings:LoraRegistrySettings",
        names=("OBJECT_STORE__URL",),
    ),
    FirstSettings(
        title="Autoscaler",
        prefixes=("STRATOS_AUTOSCALER_",),
        module="stratos_autoscaler.settings:AutoscalerSettings",
        names=("POOLS", "PLANNER__UP_QUEUE_DEPTH", "PLANNER__IDLE_S"),
    ),
)
