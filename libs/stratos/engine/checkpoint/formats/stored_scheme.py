"""How layers are stored in a checkpoint: what its configuration says, and readers of tensors ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import shown
from stratos.engine.checkpoint.weight_schemes import GROUP_STEP, LinearScheme

Packing = Literal[
    "plain", "compressed-int4", "compressed-int8", "compressed-mxfp4", "compressed-nvfp4", "gptq", "awq",
    "bitsandbytes-nf4", "modelopt-nvfp4",
]  # fmt: skip
"""How codes lie in the file: one a byte, or several in a byte or a word of 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScheme:
    """How some linear layers are stored."""

    scheme: LinearScheme
    packing: Packing
    group: int
    """Inputs that share a scale; 0: all, or the whole weight where the scale says so."""
    block: int = 0
    """Outputs that share a scale, where blocks have scales (fp8)."""
    has_zeros: bool = False
    has_order: bool = False
    """Inputs of a group may lie anywhere: each layer has a tensor that names the group of each."""
    scale_name: str = "weight_scale"
    zeros_are_less_one: bool | None = None
    """GPTQ: the file holds each zero less one (v1); ``None``: told by the zeros, which are all 8."""


def group_size(size: Any) -> int:
    """Inputs of a group that a configuration states; -1 in files is all of them, which is 0 here.

    Raises:
        InvalidCheckpoint: the kernels have no such groups.
    """
    if size in (-1, None):
        return 0
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0 or size % GROUP_STEP:
        raise InvalidCheckpoint(f"config.json: groups of {shown(size)} inputs; supported: multiples of {GROUP_STEP}")
    return size
