"""Tiny models as GGUF files, and the same weights as floats in ``transformers``.

Blocks are random bytes with scales of a sensible size, so no quantiser is needed; what they stand for goes into the
reference.  The rows of q and k of a Llama are put into the order of GGUF by the published converter's rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stratos.engine.checkpoint.gguf.blocks import as_floats
from stratos.text.gguf.folder import write_model_folder
from tests.support.paths import BASE_MODEL
from tests.support.reference.gguf_files import TYPES, Stored, gguf_bytes, shipped_vocabulary, write
from tests.support.reference.gguf_rounding import SUPER, q4_0, q4_k, q5_k, q6_k, q8_0
from tests.support.reference.tiny_models import save_tiny

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.05,
}
"""Rows of whole blocks of 256."""
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HALVES = {
    **{"Q4_0": {0: 0.01}, "Q4_1": {0: 0.01, 2: -0.075}, "Q5_0": {0: 0.005}, "Q5_1": {0: 0.005, 2: -0.0775}},
    **{"Q8_0": {0: 7e-4}, "Q4_K": {0: 1.5e-4, 2: 1.1e-3}, "Q5_K": {0: 7e-5, 2: 1.1e-3}, "Q6_K": {208: 4e-5}},
}
"""Byte of each float16 of a block, and its size."""
ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    **{"Q8_0": q8_0, "Q4_0": q4_0},
    **{"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k},
}
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Kinds = Mapping[str, str]
"""Part of a layer, "token_embd" or "output" -> type of its blocks; "" for all others."""


def gguf_name(name: str) -> str:
    """Name in the file of a parameter of ``transformers``."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def random_blocks(kind: str, rows: int, length: int, source: torch.Generator) -> Tensor:
    """uint8 [rows, blocks, bytes]."""
    _, elements, num_bytes = TYPES[kind]
    blocks = torch.randint(0, 256, (rows, length // elements, num_bytes), generator=source, dtype=torch.uint8)
    for begin, size in _HALVES[kind].items():
        halves = size * (0.5 + torch.rand(*blocks.shape[:2], 1, generator=source))
        if kind == "Q4_0":  # the sign of the largest element
            halves *= torch.where(torch.rand(halves.shape, generator=source) < 0.5, -1.0, 1.0)
        blocks[..., begin : begin + 2] = halves.half().view(torch.uint8)
    return blocks


def save_gguf(path: Path, kinds: Kinds, prefix: str = "Llama", **changes: Any) -> Any:
    """Write a random model as ``path`` / ``model.gguf`` with its folder ``path`` / ``folder``.

    Returns the same model in ``transformers``.
    """
    model = save_tiny(path / "floats", prefix, **{**SHAPE, **changes})
    config = json.loads((path / "floats" / "config.json").read_text())
    source, tensors = torch.Generator().manual_seed(1), {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            ours = gguf_name(name)
            part = ours.removesuffix(".weight").rpartition(".")[2]
            kind = "F32" if parameter.dim() == 1 else kinds.get(part, kinds[""])
            stored, floats = _stored(parameter, kind, source)
            parameter.copy_(floats)
            heads = _paired_heads(ours, config) if prefix == "Llama" else 0
            tensors[ours] = Stored(tuple(parameter.shape), kind, _bytes(_as_pairs(stored, heads)))
    if (factors := _rope_factors(model, config)) is not None:
        tensors["rope_freqs.weight"] = Stored(tuple(factors.shape), "F32", _bytes(factors))
    write(path / "model.gguf", gguf_bytes(_metadata(prefix.lower(), config), tensors))
    write_model_folder(path / "model.gguf", path / "folder")
    return model


def save_shipped_gguf(path: Path) -> Path:
    """Write the shipped model with its linear layers in Q8_0, or in the mix of a Q4_K_M file, as its name says."""
    kind_of = _mixed if "Q4_K_M" in path.name else _eight_bits
    return save_llama_gguf(BASE_MODEL, path, kind_of)


def save_llama_gguf(folder: Path, path: Path, kind_of: Callable[[str, Tensor], str] = lambda *_: "BF16") -> Path:
    """Write a Llama in float weights whose tokenizer is the shipped one; norms are F32.

    Args:
        folder: of the checkpoint; rows beyond the tokenizer's vocabulary become tokens of some text.
        path: of the GGUF file.
        kind_of: name in the file and weight -> type of blocks.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        ours = gguf_name(name)
        kind = "F32" if weight.dim() == 1 else kind_of(ours, weight)
        stored = ROUNDED[kind](weight) if kind in ROUNDED else weight.to(_FLOATS[kind])
        tensors[ours] = Stored(tuple(weight.shape), kind, _bytes(_as_pairs(stored, _paired_heads(ours, config))))
    vocabulary = shipped_vocabulary(config["vocab_size"])
    return write(path, gguf_bytes({**_metadata("llama", config), **vocabulary}, tensors))


def _eight_bits(name: str, weight: Tensor) -> str:
    return "BF16" if name == "token_embd.weight" else "Q8_0"


def _mixed(name: str, weight: Tensor) -> str:
    """As llama.cpp mixes: more bits for the embedding, and for v and down of half of the layers."""
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    has_more = name == "token_embd.weight" or (layer % 2 == 0 and (".attn_v." in name or ".ffn_down." in name))
    if weight.shape[1] % SUPER:  # rows that no blocks of 256 fill
        return "Q8_0"
    return "Q6_K" if has_more else "Q4_K"


def _stored(parameter: Tensor, kind: str, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bytes [rows, ...] and the floats that they stand for."""
    if kind in _FLOATS:
        rows = parameter.detach().to(_FLOATS[kind]).contiguous()
        return rows, rows.float()
    blocks = random_blocks(kind, *parameter.shape, source)
    return blocks, as_floats(kind, blocks.flatten(0, 1)).view(parameter.shape)


def _paired_heads(name: str, config: dict[str, Any]) -> int:
    if ".attn_q." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".attn_k." in name else 0


def _as_pairs(rows: Tensor, heads: int) -> Tensor:
    """``LlamaModel.permute`` of convert_hf_to_gguf.py."""
    if not heads:
        return rows
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _rope_factors(model: Any, config: dict[str, Any]) -> Tensor | None:
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return None
    dim = config["head_dim"]
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
    return (plain / model.model.rotary_emb.inv_freq).float()


def _metadata(name: str, config: dict[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    keys: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    tokens = [chr(0x100 + index) if index < 95 else f"<|{index}|>" for index in range(config["vocab_size"])]
    return {
        "general.architecture": name,
        **{f"{name}.{key}": item for key, item in keys.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 95 + [3] * (len(tokens) - 95),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 95,
    }
