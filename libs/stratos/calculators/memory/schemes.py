"""Bytes of an element: of weights by scheme, of KV by type."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.calculators.bounds import one_of
from stratos.calculators.formula import Figure, Formula
from stratos.calculators.models.shape import ModelShape, Products


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How products are stored; tables, norms and biases stay in the compute type."""

    bits: int
    scale_bits: int
    """Bits of the scale that ``group_size`` weights share."""
    group_size: int
    compute: str
    step: int = 1
    """Layers whose inputs are no multiple of it stay in the compute type."""
    codes_head: bool = False
    """The output layer is int8, too, beside a table of embeddings that stays in the compute type."""

    @property
    def head_bytes(self) -> int:
        """Bytes of an element of the output layer."""
        return 1 if self.codes_head else ELEMENT_BYTES[self.compute]


WEIGHT_SCHEMES = {
    "float32": WeightScheme(32, 0, 1, "float32"),
    "bfloat16": WeightScheme(16, 0, 1, "bfloat16"),
    "float16": WeightScheme(16, 0, 1, "float16"),
    "fp8": WeightScheme(8, 0, 1, "bfloat16", 32),
    "int8": WeightScheme(8, 0, 1, "bfloat16"),
    "int8+head": WeightScheme(8, 0, 1, "bfloat16", codes_head=True),
    "int4": WeightScheme(4, 16, 128, "bfloat16", 128),
    "int4-g32": WeightScheme(4, 32, 32, "bfloat16", 32),
    "int4-g32+head": WeightScheme(4, 32, 32, "bfloat16", 32, codes_head=True),
    "mxfp4": WeightScheme(4, 8, 32, "bfloat16", 32),
    "mxfp4-f32": WeightScheme(4, 32, 32, "bfloat16", 32),
    "nf4": WeightScheme(4, 32, 64, "bfloat16", 64),
    "nf4-double": WeightScheme(4, 8, 64, "bfloat16", 64),
    "nvfp4": WeightScheme(4, 8, 16, "bfloat16", 32),
    "llm-int8": WeightScheme(8, 0, 1, "bfloat16"),
}
"""One scale of fp8 and int8 serves a whole row: less than a thousandth.

``int4`` is how checkpoints are published, ``int4-g32`` what ``--quantization int4`` and Q4_0 take in our engine; so
is ``mxfp4`` a file, and ``mxfp4-f32`` what our engine holds of one or of ``--quantization mxfp4``, with float32 scales.
``+head`` is what ``--quantization`` calls so.
``nf4-double`` is a file with double quantisation; our engine holds what ``nf4`` says of either.
"""
SCHEMES_HELP = f"Weights: {', '.join(WEIGHT_SCHEMES)}."
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}

_PRODUCTS = Formula(
    "product_bytes",
    "ceil(coded_parameters * (bits + scale_bits / group_size) / 8) + float_parameters * element_bytes",
)
_KEPT = Formula("kept_bytes", "kept_parameters * element_bytes")


def find_scheme(name: str) -> WeightScheme:
    """Raises ``BadRequest`` for an unknown one."""
    return one_of("--weights", name, WEIGHT_SCHEMES)


def product_bytes(scheme: WeightScheme, *products: Products) -> Figure:
    """Bytes of weights of linear layers, with their scales."""
    coded = sum(
        count
        for each in products
        if not each.only_scheme or scheme in (WEIGHT_SCHEMES[each.only_scheme], WEIGHT_SCHEMES[scheme.compute])
        for inputs, count in each.by_inputs
        if inputs % scheme.step == 0
    )
    values = {"bits": scheme.bits, "scale_bits": scheme.scale_bits, "group_size": scheme.group_size}
    return _PRODUCTS(
        coded_parameters=coded,
        float_parameters=sum(each.parameters for each in products) - coded,
        element_bytes=ELEMENT_BYTES[scheme.compute],
        **values,
    )


def kept_bytes(shape: ModelShape, scheme: WeightScheme) -> Figure:
    """Bytes of what no scheme changes."""
    source = "tables, norms, biases and routers in the compute type"
    kept = shape.small_parameters + shape.table_parameters if scheme.codes_head else shape.kept_parameters
    return _KEPT(source, kept_parameters=kept, element_bytes=ELEMENT_BYTES[scheme.compute])


def kv_element_bytes(kv_dtype: str, scheme: WeightScheme) -> int:
    """Bytes of an element of KV; "auto" is the compute type. Raises ``BadRequest`` for an unknown type."""
    return one_of("--kv-dtype", scheme.compute if kv_dtype == "auto" else kv_dtype, ELEMENT_BYTES)
