"""Names of tensors in GGUF files of decoders -> names that ``tensor_names`` expects."""

from __future__ import annotations

import re

from stratos.engine.checkpoint.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix

_WHOLE = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": LM_HEAD}
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,5})\.(?P<part>\w+)\.(?P<kind>weight|bias)")


def full_name(name: str) -> str:
    """Name in the loader; one that is not known stays as it is, and is refused there."""
    found = _LAYER.fullmatch(name)
    if found is None or found["part"] not in _PARTS:
        return _WHOLE.get(name, name)
    return f"{layer_prefix(int(found['layer']))}.{_PARTS[found['part']]}.{found['kind']}"


def paired_heads(name: str, num_heads: int, num_kv_heads: int) -> int:
    """Heads whose rows lie as pairs that rotate together, which files of Llama have; 0: rows lie as they are computed.

    Args:
        name: in the loader.
        num_heads: of queries.
        num_kv_heads: of keys.
    """
    if ".self_attn.q_proj." in name:
        return num_heads
    return num_kv_heads if ".self_attn.k_proj." in name else 0
