"""Linear layers whose weights stay codes: packed once for the C++ kernels, widened only inside their products.

Rows are as independent of each other as those of ``NativeLinear``: integers.h, codes.h and k_quants.h say how they add.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.layers.invariance import Linear
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.memory.weight_memory import WeightMemory, kept_copy
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import LinearWeight

NO_TILES = -1
"""``LinearWeight.tile_rows`` of a weight whose bytes are multiplied by vectors alone."""


class QuantisedLinear(NativeProduct):
    """``x @ weight.T + bias`` of a weight of any ``LinearScheme`` but floats.

    Args:
        library: the compiled kernels.
        weight: copied into panels; nothing of it is kept.
        bias: [outputs] in ``dtype``, or ``None``.
        dtype: type of the rows.
        memory: of the model; without one the weight has memory of its own.
        is_float: results are float32 whatever ``dtype`` is.
    """

    __slots__ = ("_scales", "_zeros", "scheme")

    def __init__(
        self,
        library: NativeLibrary,
        weight: QuantisedWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        memory: WeightMemory | None = None,
        *,
        is_float: bool = False,
    ) -> None:
        (outputs, inputs), self.scheme, memory = weight.shape, weight.scheme, memory or WeightMemory()
        codes = weight.codes.contiguous()
        packed = memory.take(library.code_bytes(weight.scheme, outputs, inputs))
        library.pack_codes(
            *(weight.scheme, codes.data_ptr(), packed.data_ptr()), *(outputs, inputs, torch.get_num_threads())
        )
        columns = library.panel()
        self._scales = _by_panel(weight.factors, columns, memory)
        self._zeros = None if weight.zeros is None else _by_panel(weight.zeros, columns, memory)
        argument = LinearWeight(
            scales=self._scales.data_ptr(),
            zeros=None if self._zeros is None else self._zeros.data_ptr(),
            n=outputs,
            k=inputs,
            scheme=weight.scheme,
            group=weight.group,
        )
        super().__init__(library, packed, bias, argument, dtype, torch.float32 if is_float else dtype)

    @property
    def resident_bytes(self) -> int:
        """Memory of codes, scales and zeros."""
        return self._packed.nbytes + self._scales.nbytes + (0 if self._zeros is None else self._zeros.nbytes)


class NestedLinear(NativeProduct):
    """``x @ weight.T + bias`` of a weight in Q4_K, Q5_K, Q6_K or NVFP4.

    Args:
        library: the compiled kernels.
        weight: copied into panels; nothing of it is kept.
        bias: [outputs] in ``dtype``, or ``None``.
        dtype: type of the rows.
        memory: of the model; without one the weight has memory of its own.
        is_float: results are float32 whatever ``dtype`` is.
    """

    __slots__ = ("_parts", "_scales")

    def __init__(
        self,
        library: NativeLibrary,
        weight: NestedWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        memory: WeightMemory | None = None,
        *,
        is_float: bool = False,
    ) -> None:
        (outputs, inputs), codes, memory = weight.shape, weight.codes.contiguous(), memory or WeightMemory()
        packed = memory.take(library.k_code_bytes(weight.scheme, outputs, inputs))
        library.pack_k_codes(
            *(weight.scheme, codes.data_ptr(), packed.data_ptr()), *(outputs, inputs, torch.get_num_threads())
        )
        columns, wholes = library.panel(), weight.wholes
        if wholes.shape[2] == 2:  # minima are added with their sign turned
            wholes = torch.stack((wholes[..., 0], -wholes[..., 1]), -1)
        self._scales = _by_panel(wholes.flatten(1), columns, memory)
        self._parts = _by_panel(weight.parts.flatten(1), columns, memory)
        argument = LinearWeight(
            scales=self._scales.data_ptr(),
            parts=self._parts.data_ptr(),
            n=outputs,
            k=inputs,
            scheme=weight.scheme,
        )
        super().__init__(library, packed, bias, argument, dtype, torch.float32 if is_float else dtype)

    @property
    def resident_bytes(self) -> int:
        """Memory of codes and scales."""
        return self._packed.nbytes + self._scales.nbytes + self._parts.nbytes


class ReorderedLinear:
    """A product whose inputs are put in the order of its groups before; rows stay independent of each other.

    The pass in one call knows no such order, so a model that has one runs layer by layer.
    """

    __slots__ = ("_order", "product")

    def __init__(self, product: Linear, order: Tensor) -> None:
        self.product, self._order = product, order

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x.index_select(1, self._order))


def _by_panel(of_groups: Tensor, columns: int, memory: WeightMemory) -> Tensor:
    """[outputs, groups] as [panels, groups, columns] for the kernels, zeros after the last output."""
    outputs, groups = of_groups.shape
    panels = -(-outputs // columns)
    padded = of_groups.new_zeros(panels * columns, groups)
    padded[:outputs] = of_groups
    return kept_copy(padded.view(panels, columns, groups).transpose(1, 2), memory)
