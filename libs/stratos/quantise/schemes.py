"""Schemes of ``stratos quantize``: numbers of the weights, and the method that chooses them; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stratos.common.errors import BadRequest
from stratos.engine.checkpoint.weight_schemes import LinearScheme

Method = Literal["rtn", "gptq", "awq", "smoothquant"]
GROUP_SIZES = (128, 64, 32)
"""Inputs that share a scale, in the order in which they are tried where none is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedScheme:
    """A scheme by its name."""

    name: str
    numbers: LinearScheme
    method: Method

    @property
    def has_groups(self) -> bool:
        """Groups of inputs have scales; else each output has one."""
        return self.numbers == LinearScheme.INT4

    @property
    def scales_inputs(self) -> bool:
        """Inputs of products are scaled, and what computes them by the inverse."""
        return self.method in ("awq", "smoothquant")


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        WantedScheme(name="int4-rtn", numbers=LinearScheme.INT4, method="rtn"),
        WantedScheme(name="int4-gptq", numbers=LinearScheme.INT4, method="gptq"),
        WantedScheme(name="int4-awq", numbers=LinearScheme.INT4, method="awq"),
        WantedScheme(name="int8-rtn", numbers=LinearScheme.INT8_ROWS, method="rtn"),
        WantedScheme(name="int8-smoothquant", numbers=LinearScheme.INT8_ROWS, method="smoothquant"),
        WantedScheme(name="fp8-rtn", numbers=LinearScheme.FP8, method="rtn"),
    )
}


def find_scheme(name: str) -> WantedScheme:
    """Raises ``BadRequest`` for an unknown one."""
    if name not in SCHEMES:
        raise BadRequest(f"scheme {name!r} is not known; known: {', '.join(SCHEMES)}", param="--scheme")
    return SCHEMES[name]


def stated_config(scheme: WantedScheme, group: int) -> dict[str, Any]:
    """``quantization_config`` as compressed-tensors states it.

    Args:
        scheme: of all linear layers.
        group: inputs of a group, where the scheme has groups.
    """
    inputs: dict[str, Any] | None = None
    if scheme.has_groups:
        layout = "pack-quantized"
        weights: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
        if scheme.method == "gptq":
            weights["actorder"] = "static"
    else:
        kind = "float" if scheme.numbers == LinearScheme.FP8 else "int"
        layout = f"{kind}-quantized"
        weights = {"num_bits": 8, "type": kind, "strategy": "channel"}
        inputs = {"num_bits": 8, "type": kind, "strategy": "token", "symmetric": True, "dynamic": True}
    weights |= {"symmetric": True, "dynamic": False}
    part = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": {**part, "format": layout}},
    }
