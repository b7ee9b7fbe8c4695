"""Which weights of a GGUF file stay codes in memory, and which are widened to floats when the model is loaded.

A block stays what it is where a product of the kernels has exactly its arithmetic: Q8_0 is 8 bits, and Q4_0 4 bits
about 8, with a scale for 32 inputs.  K-quants have scales of scales and minima, for which there is no product.  The
layers of one product (q, k and v; gate and up) stay codes together, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stratos.engine.checkpoint.weight_schemes import LinearScheme

KEPT = {"Q8_0": LinearScheme.INT8, "Q4_0": LinearScheme.INT4}
"""Name of a block type -> scheme of the product."""
KEPT_BYTES = {LinearScheme.INT8: 1.125, LinearScheme.INT4: 0.625}
"""Of an element in memory, its share of a float32 scale included."""
PRODUCTS = (("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))
_WEIGHT = re.compile(r"(?P<layer>blk\.\d+)\.(?P<part>\w+)\.weight")


def kept_schemes(types: Mapping[str, str]) -> dict[str, LinearScheme]:
    """Scheme of each weight that stays codes.

    Args:
        types: name of the block type of each tensor, by the tensor's name in the file.
    """
    kept = {}
    for name, block_type in types.items():
        found = _WEIGHT.fullmatch(name)
        product = next((parts for parts in PRODUCTS if found and found["part"] in parts), ())
        if found is None or not product or block_type not in KEPT:
            continue
        if all(types.get(f"{found['layer']}.{part}.weight") == block_type for part in product):
            kept[name] = KEPT[block_type]
    return kept
