"""Linear layers of K-quants: packed once for the C++ kernels, widened only inside their products (k_quants.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from stratos.engine.checkpoint.gguf.k_quants import KQuantWeight
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.layers.quantised_linear import by_panel
from stratos.engine.memory.huge_pages import zeroed_bytes
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import LinearWeight


class KQuantLinear(NativeProduct):
    """``x @ weight.T + bias`` of a weight in Q4_K, Q5_K or Q6_K.

    Args:
        library: the compiled kernels.
        weight: copied into panels; nothing of it is kept.
        bias: [outputs] in ``dtype``, or ``None``.
        dtype: type of the rows.
        is_float: results are float32 whatever ``dtype`` is.
    """

    __slots__ = ("_parts", "_scales")

    def __init__(
        self,
        library: NativeLibrary,
        weight: KQuantWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        is_float: bool = False,
    ) -> None:
        (outputs, inputs), codes = weight.shape, weight.codes.contiguous()
        packed = zeroed_bytes(library.k_code_bytes(weight.scheme, outputs, inputs))
        library.pack_k_codes(
            *(weight.scheme, codes.data_ptr(), packed.data_ptr()), *(outputs, inputs, torch.get_num_threads())
        )
        columns, wholes = library.panel(), weight.wholes
        if wholes.shape[2] == 2:  # minima are added with their sign turned
            wholes = torch.stack((wholes[..., 0], -wholes[..., 1]), -1)
        self._scales = by_panel(wholes.flatten(1), columns)
        self._parts = by_panel(weight.parts.flatten(1), columns)
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
