"""Which weights of a GGUF file stay codes in memory, and which are widened to floats when the model is loaded.

A block stays what it is where a product of the kernels has exactly its arithmetic: Q8_0 is 8 bits, and Q4_0 4 bits
about 8, with a scale for 32 inputs; K-quants have products of their own.  The output layer is a product like the
others, also where it is the embedding, whose rows are looked up in a second copy of floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stratos.engine.checkpoint.weight_schemes import LinearScheme

KEPT = {
    "Q8_0": LinearScheme.INT8,
    "Q4_0": LinearScheme.INT4,
    "Q4_K": LinearScheme.Q4_K,
    "Q5_K": LinearScheme.Q5_K,
    "Q6_K": LinearScheme.Q6_K,
}
"""Name of a block type -> scheme of the product."""
KEPT_BYTES = {
    **{LinearScheme.INT8: 1.125, LinearScheme.INT4: 0.625},
    **{LinearScheme.Q4_K: 0.59375, LinearScheme.Q5_K: 0.71875, LinearScheme.Q6_K: 0.828125},
}
"""Of an element in memory, its share of scales included: float32 ones, and for K-quants two bytes for 32 inputs."""
HEAD, TABLE = "output.weight", "token_embd.weight"
_WEIGHT = re.compile(r"blk\.\d+\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.weight")


def kept_schemes(types: Mapping[str, str]) -> dict[str, LinearScheme]:
    """Scheme of each weight whose product has codes; of ``TABLE`` where it is the output layer as well.

    Args:
        types: name of the block type of each tensor, by the tensor's name in the file.
    """
    products = {HEAD if HEAD in types else TABLE, *filter(_WEIGHT.fullmatch, types)}
    return {name: KEPT[kind] for name, kind in types.items() if name in products and kind in KEPT}
