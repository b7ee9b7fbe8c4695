"""Schemes that the weights of a linear layer may have, and their bounds; without torch."""

from __future__ import annotations

from enum import IntEnum


class LinearScheme(IntEnum):
    """``Scheme`` of gemm.h."""

    FLOATS = 0
    """Elements of the compute type."""
    INT8_ROWS = 1
    """Bytes with a scale per output, and rows cut to bytes per token: W8A8."""
    INT8 = 2
    INT4 = 3
    FP8 = 4
    """e4m3."""
    MXFP4 = 5
    """e2m1, with a scale per 32 inputs that is a power of two."""
    Q4_K = 6
    Q5_K = 7
    Q6_K = 8
    """K-quants of GGUF files: scales of 32 or 16 inputs have a scale for 256."""

    @property
    def label(self) -> str:
        """How identities and reports call it."""
        return {1: "int8-rows", 2: "int8", 3: "int4", 4: "fp8", 5: "mxfp4", 6: "q4-k", 7: "q5-k", 8: "q6-k"}.get(
            self, "float"
        )


ROUNDED = {
    "int8": LinearScheme.INT8_ROWS,
    "int4": LinearScheme.INT4,
    "fp8": LinearScheme.FP8,
    "mxfp4": LinearScheme.MXFP4,
}
"""Scheme that float weights have after they were quantised at load, by the setting that asks for it."""


def label_at_load(quantization: str) -> str:
    """How identities and reports call weights that are quantised at load; ``quantization`` is no "auto"."""
    return f"{ROUNDED[quantization].label}-at-load"


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of MXFP4 by their code."""
NAN_EXPONENT, EXPONENT_BIAS = 255, 127
"""A scale of MXFP4 is a byte, its exponent plus the bias; one of them is NaN."""
INT4_ZERO = 8
"""Code of zero where a weight has no zeros of its own."""
GROUP_STEP = 32
"""Groups, and inputs of all schemes but ``INT8_ROWS``, are multiples of it: a step of the tile instruction."""
MAX_BYTE_INPUTS = 65536
"""Inputs up to which a sum of products of bytes fits into 32 bits."""
