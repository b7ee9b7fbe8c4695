"""Schemes that the weights of a linear layer may have, and their bounds; without torch."""

from __future__ import annotations

from enum import IntEnum


class LinearScheme(IntEnum):
    """``Scheme`` of gemm.h."""

    FLOATS = 0
    """Elements of the compute type."""
    INT8_ROWS = 1
    """Bytes with a scale per output, and rows cut to bytes per token: W8A8."""
    LLM_INT8 = 2
    """The same, but elements of a row that are large (``OUTLIER``) are multiplied as they are."""
    INT8 = 3
    INT4 = 4
    FP8 = 5
    """e4m3."""
    MXFP4 = 6
    """e2m1, with a scale per 32 inputs that is a power of two."""
    NF4 = 7
    """Quantiles of the normal distribution, with a scale per 64 inputs."""
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    """K-quants of GGUF files: scales of 32 or 16 inputs have a scale for 256."""
    NVFP4 = 11
    """e2m1, with an e4m3 scale per 16 inputs; an output has a scale for all of them."""

    @property
    def label(self) -> str:
        """How identities and reports call it."""
        return self.name.lower().replace("_", "-") if self else "float"


ROUNDED = {
    "int8": LinearScheme.INT8_ROWS,
    "int4": LinearScheme.INT4,
    "fp8": LinearScheme.FP8,
    "mxfp4": LinearScheme.MXFP4,
    "nf4": LinearScheme.NF4,
    "llm-int8": LinearScheme.LLM_INT8,
    "int8+head": LinearScheme.INT8_ROWS,
    "int4+head": LinearScheme.INT4,
}
"""Scheme that float weights have after they were quantised at load, by the setting that asks for it."""
AT_LOAD = ", ".join(ROUNDED)
"""Those settings, as texts of options list them."""


def label_at_load(quantization: str) -> str:
    """How identities and reports call weights that are quantised at load; ``quantization`` is no "auto"."""
    return f"{ROUNDED[quantization].label}{'-and-head' * rounds_head(quantization)}-at-load"


_AND_HEAD = "+head"
HEAD_KIND = "int8"
"""What an output layer is quantised to at load: it chooses the token, and four bits would choose others too often."""


def rounds_head(quantization: str) -> bool:
    """Whether the output layer is quantised at load as well."""
    return quantization.endswith(_AND_HEAD)


def kind_of_layers(quantization: str) -> str:
    """Scheme that the other layers are quantised to at load, as the setting calls it."""
    return quantization.removesuffix(_AND_HEAD)


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of MXFP4 and NVFP4 by their code."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Numbers of NF4 by their code, as bitsandbytes has them."""
NF4_GROUP, NVFP4_GROUP = 64, 16
"""Inputs that share a scale."""
OUTLIER = 6.0
"""Size from which an element of a row is multiplied as it is (LLM.int8)."""
NAN_EXPONENT, EXPONENT_BIAS = 255, 127
"""A scale of MXFP4 is a byte, its exponent plus the bias; one of them is NaN."""
INT4_ZERO = 8
"""Code of zero where a weight has no zeros of its own."""
GROUP_STEP = 32
"""Groups, and inputs of all schemes but those of ``BYTE_ROWS``, are multiples of it: a step of the tile instruction."""
BYTE_ROWS = (LinearScheme.INT8_ROWS, LinearScheme.LLM_INT8)
"""Schemes whose products are those of bytes."""
MAX_BYTE_INPUTS = 65536
"""Inputs up to which a sum of products of bytes fits into 32 bits."""


def can_round(inputs: int, kind: str) -> bool:
    """Whether the kernels have a product for weights of so many inputs, quantised at load; others stay floats."""
    if ROUNDED[kind] in BYTE_ROWS:
        return inputs <= MAX_BYTE_INPUTS
    return inputs % (NF4_GROUP if kind == "nf4" else GROUP_STEP) == 0
