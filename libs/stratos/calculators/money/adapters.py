"""Many fine-tuned variants: a base of its own for each, or one base with their LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stratos.calculators.bounds import above_zero, not_below_zero, one_of, shares
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.memory.schemes import ELEMENT_BYTES
from stratos.calculators.models.shape import ModelShape
from stratos.calculators.sheet import Sheet
from stratos.common.errors import BadRequest

_ADAPTER = Formula("adapter_bytes", "rank * adapter_features * element_bytes")
_OF_BASE = Formula("adapter_share_of_base", "adapter_bytes / (parameters * element_bytes)")
_RESIDENT = Formula("resident_bytes", "min(variants, resident) * adapter_bytes")
_STORE = Formula("stored_bytes", "variants * adapter_bytes")
_DEDICATED = Formula(
    "dedicated_devices", "variants * ceil(requests_per_s_each / (replica_requests_per_s * load)) * devices"
)
_LIMIT = Formula("second_replica_at_requests_per_s", "replica_requests_per_s * (1 - overhead) * load")
_REPLICAS = Formula("shared_replicas", "ceil(variants * requests_per_s_each / second_replica_at_requests_per_s)")
_SHARED = Formula("shared_devices", "shared_replicas * devices")
_USD = Formula("saved_usd_per_month", "(dedicated_devices - shared_devices) * usd_per_hour * 720")
_SAVED = Formula("saved_share", "1 - shared_devices / dedicated_devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAsk:
    """Variants of one base, and their load."""

    variants: Annotated[int, "Fine-tuned variants."] = 10
    rank: Annotated[int, "Rank of the adapters, on all projections."] = 16
    resident: Annotated[int, "Adapters in the memory of a worker at once."] = 8
    requests_per_s_each: Annotated[float, "Requests per second of each variant."] = 0.1
    replica_requests_per_s: Annotated[float, "Requests per second of a replica without adapters."] = 0
    overhead: Annotated[float, "Share of its speed that a batch of adapters costs; S-LoRA: 0.055 to 0.12."] = 0.1
    load: Annotated[float, "Share of a replica's capacity that is planned with."] = 0.7
    devices: Annotated[int, "Devices of a replica."] = 1
    dtype: Annotated[str, "Type of the adapters."] = "bfloat16"


def plan_adapters(shape: ModelShape, ask: LoraAsk, price: Figure) -> Sheet:
    """Devices and memory of both ways, and the load from which one shared base is not enough.

    Raises:
        BadRequest: a value that makes no sense, by name; a model whose adapters are not served.
    """
    above_zero(variants=ask.variants, rank=ask.rank, resident=ask.resident, devices=ask.devices)
    above_zero(requests_per_s_each=ask.requests_per_s_each, replica_requests_per_s=ask.replica_requests_per_s)
    not_below_zero(overhead=ask.overhead)
    shares(load=ask.load, **{"1 - overhead": 1 - ask.overhead})
    if not shape.adapter_features:
        raise BadRequest(f"--model {shape.name}: the engine serves no adapters of this family", param="--model")
    memory = _memory(shape, ask)
    replica = {"replica_requests_per_s": ask.replica_requests_per_s, "load": ask.load}
    load = {"variants": ask.variants, "requests_per_s_each": ask.requests_per_s_each}
    dedicated = _DEDICATED("a base for each", **load, **replica, devices=ask.devices)
    limit = _LIMIT(**replica, overhead=ask.overhead)
    replicas = _REPLICAS(**load, second_replica_at_requests_per_s=limit.value)
    shared = _SHARED(shared_replicas=replicas.value, devices=ask.devices)
    both = {"dedicated_devices": dedicated.value, "shared_devices": shared.value}
    saved = (_SAVED(**both), price, _USD(**both, usd_per_hour=price.value))
    return Sheet(
        title=f"{ask.variants} variants of {shape.name}",
        figures=(*memory, dedicated, limit, replicas, shared, *saved),
        notes=("adapter_features: features in and out of every projection that takes adapters, experts apart.",),
    )


def _memory(shape: ModelShape, ask: LoraAsk) -> tuple[Figure, ...]:
    element = one_of("--dtype", ask.dtype, ELEMENT_BYTES)
    adapter = _ADAPTER(rank=ask.rank, adapter_features=shape.adapter_features, element_bytes=element)
    return (
        adapter,
        _OF_BASE(adapter_bytes=adapter.value, parameters=shape.parameters, element_bytes=element),
        _RESIDENT("on each worker", variants=ask.variants, resident=ask.resident, adapter_bytes=adapter.value),
        _STORE("in the object store", variants=ask.variants, adapter_bytes=adapter.value),
    )
