"""NF4 of bitsandbytes: blocks of 64, their scales as floats or as bytes with scales of their own (double quantisation).

A layer ``X`` has (n outputs, k inputs, b = n * k / 64 blocks):
    X.weight         U8 [n * k / 2, 1], two codes each, the first input in the upper half
    X.weight.absmax  F32 [b], or U8 [b] whose numbers X.weight.nested_quant_map F32 [256] are, times
                     X.weight.nested_absmax F32 [b / 256, rounded up], plus the offset of the state
    X.weight.quant_map F32 [16], the numbers of the codes
    X.weight.quant_state.bitsandbytes__nf4  U8, JSON: type, size of blocks, shape, and the offset
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.fields import shown
from stratos.engine.checkpoint.formats.layer_tensors import LayerTensors
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.quantised_weight import QuantisedWeight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import NF4, NF4_GROUP, LinearScheme

STATE = "weight.quant_state.bitsandbytes__nf4"
_MAP, _ABSMAX = "weight.quant_map", "weight.absmax"
_NESTED_MAP, _NESTED_ABSMAX = "weight.nested_quant_map", "weight.nested_absmax"
_NESTED_GROUP = 256
"""Blocks whose scales share a scale."""
_MAX_STATE_BYTES = 4096


class Nf4Tensors(LayerTensors):
    """The tensors of one layer in NF4, as ``LayerTensors`` says."""

    def __init__(
        self, layer: str, shape: tuple[int, int], stored: StoredScheme, tensors: Mapping[str, StoredTensor]
    ) -> None:
        super().__init__(layer, shape, stored, tensors)
        (outputs, inputs), self._offset = shape, None
        if inputs % NF4_GROUP:
            raise InvalidCheckpoint(f"layer {layer} has {inputs} inputs, which blocks of {NF4_GROUP} do not divide")
        blocks, state = outputs * inputs // NF4_GROUP, self._state()
        wanted: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
            "weight": ((outputs * inputs // 2, 1), ("U8",)),
            _MAP: ((len(NF4),), ("F32",)),
        }
        if "nested_offset" in state:
            self._offset = self._finite_offset(state["nested_offset"])
            wanted[_ABSMAX] = ((blocks,), ("U8",))
            wanted[_NESTED_ABSMAX] = ((-(-blocks // _NESTED_GROUP),), ("F32",))
            wanted[_NESTED_MAP] = ((256,), ("F32",))
        else:
            wanted[_ABSMAX] = ((blocks,), ("F32",))
        names = [self.require(suffix, shape, types) for suffix, (shape, types) in wanted.items()]
        self.names = frozenset((*names, f"{layer}.{STATE}"))

    def _state(self) -> dict[str, Any]:
        name, found = f"{self.layer}.{STATE}", self.find(STATE)
        if found.dtype != "U8" or math.prod(found.shape) > _MAX_STATE_BYTES:
            raise InvalidCheckpoint(f"{found.file_name}: tensor {name} is no state of a layer")
        try:
            state = json.loads(bytes(self.whole(STATE).flatten().tolist()))
        except (ValueError, RecursionError) as error:
            raise InvalidCheckpoint(f"{found.file_name}: tensor {name} holds no JSON: {error}") from error
        expected = {"quant_type": "nf4", "blocksize": NF4_GROUP, "shape": list(self.shape)}
        if isinstance(state, dict) and "nested_offset" in state:
            expected["nested_blocksize"] = _NESTED_GROUP
        for field, value in expected.items():
            stated = state.get(field) if isinstance(state, dict) else None
            if stated != value:
                raise InvalidCheckpoint(
                    f"{found.file_name}: tensor {name} states {field} {shown(stated)}; supported here: {value}"
                )
        return dict(state)

    def _finite_offset(self, value: Any) -> float:
        if not isinstance(value, float) or not math.isfinite(value):
            raise InvalidCheckpoint(f"tensor {self.layer}.{STATE} states nested_offset {shown(value)}")
        return value

    def read(self) -> QuantisedWeight:
        """The layer's weight; scales that are bytes become floats.

        Raises:
            InvalidCheckpoint: a scale is no number, or the numbers of the codes are not those of NF4.
        """
        if not torch.equal(self.whole(_MAP), torch.tensor(NF4)):
            raise InvalidCheckpoint(f"tensor {self.layer}.{_MAP} holds other numbers than those of NF4")
        pairs = self.whole("weight").reshape(self.shape[0], -1)
        codes = torch.stack((pairs >> 4, pairs & 15), -1).flatten(1)
        scales = self._from(0.0, _ABSMAX, self.whole(_ABSMAX).clone()) if self._offset is None else self._nested()
        return QuantisedWeight(scheme=LinearScheme.NF4, codes=codes, scales=scales.view(self.shape[0], -1))

    def _nested(self) -> Tensor:
        absmax, numbers = self.whole(_ABSMAX), self.whole(_NESTED_MAP)
        if not bool((numbers.abs() <= 1).all()):
            raise InvalidCheckpoint(f"tensor {self.layer}.{_NESTED_MAP} holds numbers other than those from -1 to 1")
        wholes = self._from(0.0, _NESTED_ABSMAX, self.whole(_NESTED_ABSMAX))
        of_blocks = wholes.repeat_interleave(_NESTED_GROUP)[: len(absmax)]
        # rounding may make the scale 0 of a block of zeros a little less than 0
        step = numbers.sort().values.diff().max() * of_blocks
        return self._from(-step, _ABSMAX, numbers[absmax.int()] * of_blocks + torch.tensor(self._offset))

    def _from(self, least: Tensor | float, suffix: str, scales: Tensor) -> Tensor:
        if not bool((torch.isfinite(scales) & (scales >= least)).all()):
            raise InvalidCheckpoint(f"tensor {self.layer}.{suffix} holds a scale that is no number from 0 on")
        return scales
