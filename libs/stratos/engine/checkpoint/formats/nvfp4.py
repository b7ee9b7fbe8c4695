"""NVFP4: e2m1 numbers in blocks of 16 with an e4m3 scale each, and a float32 scale for the whole layer.

A layer ``X`` has (n outputs, k inputs):
    compressed-tensors  X.weight_packed U8 [n, k / 2], lower half first; X.weight_scale F8_E4M3 [n, k / 16];
                        X.weight_global_scale F32, by which the scales are divided
    modelopt            X.weight U8 [n, k / 2]; X.weight_scale F8_E4M3 [n, k / 16];
                        X.weight_scale_2 F32, with which the scales are multiplied

Activations stay floats, so scales of activations are not used.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.formats.layer_tensors import LayerTensors
from stratos.engine.checkpoint.formats.stored_scheme import StoredScheme
from stratos.engine.checkpoint.quantised_weight import STEP, NestedWeight
from stratos.engine.checkpoint.stored_tensors import StoredTensor
from stratos.engine.checkpoint.weight_schemes import GROUP_STEP, NVFP4_GROUP, LinearScheme

_NAN = 0x7F
_UNUSED = ("input_global_scale", "input_scale")


class NvFp4Tensors(LayerTensors):
    """The tensors of one layer in NVFP4, as ``LayerTensors`` says."""

    def __init__(
        self, layer: str, shape: tuple[int, int], stored: StoredScheme, tensors: Mapping[str, StoredTensor]
    ) -> None:
        super().__init__(layer, shape, stored, tensors)
        outputs, inputs = shape
        if inputs % GROUP_STEP:
            raise InvalidCheckpoint(f"layer {layer} has {inputs} inputs; supported: multiples of {GROUP_STEP}")
        self._divides = stored.packing == "compressed-nvfp4"
        self._codes, self._whole_scale = (
            ("weight_packed", "weight_global_scale") if self._divides else ("weight", "weight_scale_2")
        )
        found = tensors.get(f"{layer}.{self._whole_scale}")
        number = () if found is not None and found.shape == () else (1,)
        names = (
            self.require(self._codes, (outputs, inputs // 2), ("U8",)),
            self.require("weight_scale", (outputs, inputs // NVFP4_GROUP), ("F8_E4M3",)),
            self.require(self._whole_scale, number, ("F32",)),
        )
        self.names = frozenset((*names, *self.optional(_UNUSED)))

    def read(self) -> NestedWeight:
        """The layer's weight.

        Raises:
            InvalidCheckpoint: a scale is NaN or negative, or that of the layer no positive number.
        """
        pairs, (outputs, inputs) = self.whole(self._codes), self.shape
        scales = self.whole("weight_scale").view(torch.uint8)
        # a block that is small beside the layer's largest has a scale of 0
        if bool((scales >= _NAN).any()):
            raise InvalidCheckpoint(f"tensor {self.layer}.weight_scale holds a scale that is no number from 0 on")
        whole = self._number().expand(outputs)
        return NestedWeight(
            scheme=LinearScheme.NVFP4,
            codes=torch.stack((pairs & 15, pairs >> 4), -1).flatten(1),
            parts=scales.reshape(outputs, inputs // STEP, STEP // NVFP4_GROUP).clone(),
            wholes=(1 / whole if self._divides else whole).reshape(outputs, 1, 1),
            divisors=whole if self._divides else None,
        )

    def _number(self) -> Tensor:
        number = self.whole(self._whole_scale).reshape(1)
        if not bool(torch.isfinite(number).all() & (number > 0) & torch.isfinite(1 / number)):
            name = f"{self.layer}.{self._whole_scale}"
            raise InvalidCheckpoint(f"tensor {name} holds a scale that is no positive number")
        return number
