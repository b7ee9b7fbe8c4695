"""Linear layers: on CPU the C++ kernels' products, else oneDNN's on pre-packed weights, else plain ``F.linear``.

Packing reorders a weight once into the blocked layout that a kernel wants.  It is two to three times as fast at decode
batch sizes, and for float32 it avoids MKL, which is slow on AMD processors.  The C++ kernels' rows are independent of
each other by construction; of the libraries' products that is found out by trying (``invariance``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.quantised_weight import NestedWeight, QuantisedWeight
from stratos.engine.layers.invariance import InvariantLinear, RowByRow, RowPadding, RowProbe, probed_rows
from stratos.engine.layers.invariance import Linear as Linear
from stratos.engine.layers.native_linear import JoinedLinear, NativeLinear, NativeProduct
from stratos.engine.layers.quantised_linear import NO_TILES, NestedLinear, QuantisedLinear, ReorderedLinear
from stratos.engine.layers.thread_scope import using_threads
from stratos.engine.memory.weight_memory import WeightMemory
from stratos.engine.native.library import NativeLibrary
from stratos.engine.revisions import revised

_log = logging.getLogger(__name__)


class PlainLinear:
    """``x @ weight.T + bias`` by the framework's own matrix product."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """The same with a weight in oneDNN's blocked layout (float32 or bfloat16, CPU)."""

    __slots__ = ("_op", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self.bias = bias
        self._op = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self._op(x, self.weight, self.bias, "none", [], "")
        return result


class FloatLinear:
    """A layer whose results are widened to float32: logits."""

    __slots__ = ("linear",)

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x).float()

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """The same, written to ``out`` float32 [rows, out_features] while it is widened."""
        return out.copy_(self.linear(x))


class LinearFactory:
    """Builds every linear layer of one model with the same kernel.

    Args:
        device: where the weights live.
        dtype: compute type.
        enable_prepacked_gemm: ablation switch; only CPU has packed weights.
        exact: make the result of a row independent of the other rows; only on CPU.
        library: the C++ kernels, where they are to compute the products.
        integer_tiles: ablation switch; only CPUs with AMX have some.
        grouped_codes: ablation switch; CPUs with AMX have none.
        panel_runs: ablation switch.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        enable_prepacked_gemm: bool,
        exact: bool = False,
        library: NativeLibrary | None = None,
        integer_tiles: bool = True,
        grouped_codes: bool = True,
        panel_runs: bool = True,
    ) -> None:
        self._dtype, self._library = dtype, library
        self._integer_tiles, self._grouped_codes, self._panel_runs = integer_tiles, grouped_codes, panel_runs
        self.memory = WeightMemory()
        """Memory that weights of the C++ kernels take."""
        self.is_packed = library is None and enable_prepacked_gemm and device.type == "cpu" and _can_prepack(dtype)
        self.is_exact = exact and device.type == "cpu"
        self.kernel_name = revised("torch-products", "onednn-packed" if self.is_packed else "aten")
        self.libraries: tuple[str, ...] = ("torch",)
        """Same as ``AttentionBackend.libraries``."""
        if library is not None:
            self.kernel_name, self.libraries = revised("native-products", f"gemm-{library.isa}"), ()
        self.code_products: Callable[[QuantisedWeight | NestedWeight, Tensor | None], Linear] | None = None
        """A GPU's products of weights that stay codes."""
        self.is_invariant_by_design = library is not None
        """Same as ``AttentionBackend.is_invariant_by_design``."""
        self._paddings: dict[tuple[int, int, bool], RowPadding | None] = {}
        self._num_threads: int | None = None
        """Threads of the steps, once the number is known."""

    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Take over ``weight`` [out_features, in_features] and ``bias`` [out_features]."""
        linear = self.plain(weight, bias)
        if not self.is_exact or self._library is not None:
            return linear
        padding = self._padding(weight.shape[0], weight.shape[1], bias is not None)
        if padding is None:
            return RowByRow(linear)
        return InvariantLinear(linear, padding.sizes(probed_rows(weight.numel())))

    @property
    def keeps_codes(self) -> bool:
        """Whether there are products for blocks of GGUF files and coded experts, too."""
        return self._library is not None

    @property
    def code_family(self) -> str | None:
        """Whose products take the codes of a quantised checkpoint; ``None``: there are none."""
        return "native" if self._library is not None else "triton" if self.code_products is not None else None

    def quantised(
        self, weight: QuantisedWeight | NestedWeight, bias: Tensor | None = None, *, is_float: bool = False
    ) -> Linear:
        """A layer whose weight stays codes; ``is_float``: its results are float32, for logits.

        Raises:
            InvalidCheckpoint: there are neither C++ nor Triton kernels; torch has no product that keeps a row's bits.
        """
        if self.code_products is not None:
            linear = self.code_products(weight, bias)
            return FloatLinear(linear) if is_float else linear
        if self._library is None:
            raise InvalidCheckpoint(
                "quantised weights need the C++ kernels of a CPU: build them with "
                "python -m stratos.engine.native.build, or serve float weights"
            )
        if isinstance(weight, NestedWeight):
            return self._switched(
                NestedLinear(self._library, weight, bias, self._dtype, self.memory, is_float=is_float)
            )
        product = self._switched(
            QuantisedLinear(self._library, weight, bias, self._dtype, self.memory, is_float=is_float)
        )
        return product if weight.order is None else ReorderedLinear(product, weight.order)

    def _switched(self, product: NativeProduct) -> NativeProduct:
        if not self._integer_tiles:
            product.argument.tile_rows = NO_TILES
        product.argument.single_groups = not self._grouped_codes
        product.argument.single_panels = not self._panel_runs
        return product

    def joined(self, weights: Sequence[Tensor | QuantisedWeight | NestedWeight], bias: Tensor | None = None) -> Linear:
        """One layer of several weights with the same inputs, some of which stay codes."""
        sizes = [weight.shape[0] for weight in weights]
        biases = [None] * len(sizes) if bias is None else torch.split(bias, sizes)
        products = []
        for weight, own in zip(weights, biases, strict=True):
            product = self.plain(weight, own) if isinstance(weight, Tensor) else self.quantised(weight, own)
            assert isinstance(product, NativeProduct)
            products.append(product)
        return JoinedLinear(products)

    def to_float32(self, weight: Tensor | QuantisedWeight | NestedWeight) -> Linear:
        """A layer with float32 results, for logits."""
        if not isinstance(weight, Tensor):
            return self.quantised(weight, is_float=True)
        if self._library is not None:
            return self._switched(NativeLinear(self._library, weight, None, self.memory, is_float=True))
        return FloatLinear(self(weight))

    def plain(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The same, exact only where the kernel is anyway."""
        if self._library is not None:
            return self._switched(NativeLinear(self._library, weight, bias, self.memory))
        return PackedLinear(weight, bias) if self.is_packed else PlainLinear(weight, bias)

    def _padding(self, out_features: int, in_features: int, has_bias: bool) -> RowPadding | None:
        """Padding that the layers of one shape need; found once."""
        key = (out_features, in_features, has_bias)
        if key not in self._paddings:
            probe = RowProbe(self.plain, key[:2], has_bias, self._dtype)
            with using_threads(self._num_threads or torch.get_num_threads()):
                self._paddings[key] = probe.padding()
        return self._paddings[key]

    def fix_threads(self) -> None:
        """Steps compute with as many threads as the caller has now.

        Layers of adapters are made later, by a thread that computes alone; their padding is tried with this number.
        """
        self._num_threads = torch.get_num_threads()


def _can_prepack(dtype: torch.dtype) -> bool:
    """Try the packed kernel on a small matrix: builds of torch and processors differ in what they offer."""
    weight, x = torch.ones(16, 16, dtype=dtype), torch.ones(1, 16, dtype=dtype)
    try:
        is_right = bool((PackedLinear(weight, None)(x) == 16).all())
    except (RuntimeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
    else:
        if is_right:
            return True
        reason = "it computes wrong results"
    _log.warning("pre-packed oneDNN matrix products are not available for %s, using F.linear: %s", dtype, reason)
    return False
