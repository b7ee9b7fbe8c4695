"""Revisions of the arithmetic of our own kernels, one per family: part of the numerics id.

A change that may give one bit of a result another value raises the number of its family by one, so that workers before
and after it do not take each other's KV for equal.  For the C++ families a test computes bits on every instruction set
that its machine has and compares them with committed ones; the others have no such test, as a library computes a part
of them and its version is in the id too.
"""

from __future__ import annotations

from types import MappingProxyType

REVISIONS = MappingProxyType(
    {
        "kv-codes": 1,
        "native-attention": 1,
        "native-delta": 1,
        "native-gguf-products": 2,
        "native-ops": 1,
        "native-products": 1,
        "native-quantised-products": 1,
        "routing": 1,
        "torch-attention": 1,
        "torch-ops": 1,
        "torch-products": 1,
        "triton-attention": 2,
        "triton-ops": 1,
        "triton-products": 1,
        "triton-quantised-products": 1,
    }
)
"""Family -> revision."""
NATIVE_FAMILIES = (
    *("native-attention", "native-delta", "native-ops"),
    *("native-gguf-products", "native-products", "native-quantised-products"),
)
"""Families whose bits nothing but the sources and the instruction set decide."""


def revised(family: str, kernel: str) -> str:
    """Name of a kernel in the numerics id: ``native-avx2.r1``."""
    return f"{kernel}.r{REVISIONS[family]}"
