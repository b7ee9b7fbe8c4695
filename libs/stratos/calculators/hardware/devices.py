"""Devices: memory, bandwidth and dense peaks, from the makers' datasheets.

Makers print peaks with sparsity, which no language model reaches; the table has those without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from stratos.calculators.bounds import above_zero, one_of
from stratos.calculators.tables import read_table
from stratos.common.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device."""

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float
    bf16_flops: float
    fp8_flops: float
    """0 where it computes no fp8: such weights are widened, and the peak is that of bfloat16."""
    source: str
    cuda_name: str = ""
    """Name under which CUDA lists it."""
    float32_flops: float = 0
    """0 where it is not known, as in all of the table: the other peaks are those of tensor cores."""

    def peak_flops(self, weights: str) -> float:
        """Peak for products with weights of that type.

        Raises:
            BadRequest: float32, and no peak of it is known.
        """
        if weights == "float32":
            if not self.float32_flops:
                text = f"weights: no peak of {self.name} in float32 is known; plan batch --tflops takes one"
                raise BadRequest(text, param="weights")
            return self.float32_flops
        return self.fp8_flops if weights in ("fp8", "int8", "int8+head") and self.fp8_flops else self.bf16_flops


@cache
def devices() -> Mapping[str, DeviceSpec]:
    """All devices by name; memory and rates in powers of ten, as datasheets have them."""
    return {
        name: DeviceSpec(
            name=name,
            memory_bytes=int(entry["memory_gb"] * 1e9),
            bandwidth_bytes_s=entry["bandwidth_gb_s"] * 1e9,
            bf16_flops=entry["bf16_tflops"] * 1e12,
            fp8_flops=entry["fp8_tflops"] * 1e12,
            source=entry["source"],
            cuda_name=entry.get("cuda_name", ""),
        )
        for name, entry in read_table(__package__, "devices.json").items()
    }


def find_device(name: str, *, memory_gb: float = 0, bandwidth_gb_s: float = 0, tflops: float = 0) -> DeviceSpec:
    """The device of that name, with what is not 0 in place of the table's; no name needs all three.

    Raises:
        BadRequest: an unknown name, or a figure that makes no sense.
    """
    if not name:
        above_zero(memory_gb=memory_gb, bandwidth_gb_s=bandwidth_gb_s, tflops=tflops)
    given = {"memory_gb": memory_gb, "bandwidth_gb_s": bandwidth_gb_s, "tflops": tflops}
    above_zero(**{key: value for key, value in given.items() if value})
    found = one_of("--device", name, devices()) if name else _UNNAMED
    return replace(
        found,
        source=found.source + "; changed by flags" * (name != "" and any(given.values())),
        memory_bytes=int(memory_gb * 1e9) or found.memory_bytes,
        bandwidth_bytes_s=bandwidth_gb_s * 1e9 or found.bandwidth_bytes_s,
        bf16_flops=tflops * 1e12 or found.bf16_flops,
        fp8_flops=0.0 if tflops else found.fp8_flops,
        float32_flops=tflops * 1e12,
    )


_UNNAMED = DeviceSpec(
    name="given device", memory_bytes=0, bandwidth_bytes_s=0, bf16_flops=0, fp8_flops=0, source="flags"
)
