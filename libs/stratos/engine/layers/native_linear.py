"""Linear layers by the C++ kernels: weights packed once, and products whose rows do not depend on each other.

Each element of a result is one sum in a fixed order (gemm.h), so a row has the same bits alone and in any batch, with
any number of threads, and nothing has to be tried out when a model is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from stratos.engine.memory.weight_memory import WeightMemory
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import DTYPE_CODES, LinearWeight


class NativeProduct:
    """A product that the kernels compute, of whichever scheme its weight is.

    Args:
        library: the compiled kernels.
        packed: the weight's bytes; kept, as the kernels read them.
        bias: [out_features], or ``None``.
        argument: what the kernels are called with; weight and bias are filled in here.
        dtype: type of the rows.
        out_dtype: type of the results: that of the rows, or float32.
    """

    __slots__ = ("_bias", "_dtype", "_library", "_out_dtype", "_packed", "_pointer", "argument")

    def __init__(
        self,
        library: NativeLibrary,
        packed: Tensor,
        bias: Tensor | None,
        argument: LinearWeight,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
    ) -> None:
        self._library, self._packed, self._dtype, self._out_dtype = library, packed, dtype, out_dtype
        self._bias = None if bias is None else bias.contiguous()
        argument.weight = packed.data_ptr()
        argument.bias = None if self._bias is None else self._bias.data_ptr()
        argument.stride = argument.stride or argument.n
        self.argument = argument
        """For kernels that call the product themselves; valid as long as this object."""
        self._pointer = ctypes.byref(argument)

    @property
    def parts(self) -> tuple[NativeLibrary, Tensor, Tensor | None, LinearWeight, torch.dtype, torch.dtype]:
        """Arguments of which it was made."""
        return self._library, self._packed, self._bias, self.argument, self._dtype, self._out_dtype

    @property
    def is_float(self) -> bool:
        """Results are float32 though rows may be of another type."""
        return self._out_dtype is torch.float32

    @property
    def resident_bytes(self) -> int:
        """Memory of the weight, its scales included."""
        return self._packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        assert (x.dtype, x.shape[1]) == (self._dtype, self.argument.k)
        out = x.new_empty(x.shape[0], self.argument.stride, dtype=self._out_dtype)
        self._library.linear(
            *(DTYPE_CODES[self._dtype], self._pointer, x.data_ptr(), out.data_ptr(), x.shape[0]),
            *(self._out_dtype is not self._dtype, torch.get_num_threads()),
        )
        return out


class NativeLinear(NativeProduct):
    """``x @ weight.T + bias`` in float32, bfloat16 or float16 on CPU.

    Args:
        library: the compiled kernels.
        weight: [out_features, in_features]; copied into panels.
        bias: [out_features], or ``None``.
        memory: of the model; without one the weight has memory of its own.
        is_float: results are float32 for every type of the weight: the sums as they are, not rounded.
    """

    __slots__ = ()

    def __init__(
        self,
        library: NativeLibrary,
        weight: Tensor,
        bias: Tensor | None,
        memory: WeightMemory | None = None,
        *,
        is_float: bool = False,
    ) -> None:
        out_features, in_features = weight.shape
        code, source = DTYPE_CODES[weight.dtype], weight.contiguous()
        packed = (memory or WeightMemory()).take(library.packed_bytes(code, out_features, in_features))
        library.pack(code, source.data_ptr(), packed.data_ptr(), out_features, in_features, torch.get_num_threads())
        argument = LinearWeight(n=out_features, k=in_features)
        out_dtype = torch.float32 if is_float else weight.dtype
        super().__init__(library, packed, bias, argument, weight.dtype, out_dtype)


class JoinedLinear(NativeProduct):
    """The results of products of the same rows, one behind the other, by one call of the kernels.

    Args:
        products: of the same inputs and types; this one's from now on, they write into its results.
    """

    __slots__ = ("_products",)

    def __init__(self, products: Sequence[NativeProduct]) -> None:
        first = products[0]
        assert all(product.argument.k == first.argument.k for product in products)
        self._products = tuple(products)
        for product, following in zip(products, [*products[1:], None], strict=True):
            product.argument.next = None if following is None else ctypes.addressof(following.argument)
            product.argument.stride = sum(each.argument.n for each in products)
        super().__init__(*first.parts)

    @property
    def resident_bytes(self) -> int:
        """Memory of all weights."""
        return sum(product.resident_bytes for product in self._products)
