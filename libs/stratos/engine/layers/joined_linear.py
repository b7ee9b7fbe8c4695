"""One linear layer of several weights, each by a scheme of its own: q and k in Q4_K beside v in Q6_K."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from stratos.engine.layers.native_linear import NativeProduct


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
