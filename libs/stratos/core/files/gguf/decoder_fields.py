"""Fields of ``config.json`` that say the same as the metadata and the tensors of a GGUF file.

A key that would change the computation and has no field is refused by name.
"""

from __future__ import annotations

from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.block_types import FLOAT_BLOCKS
from stratos.core.files.gguf.metadata import GgufMetadata
from stratos.core.files.gguf.parts import GgufModel
from stratos.core.files.gguf.rope_factors import llama3_rope

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
METHOD = "gguf"
"""``quant_method`` of a model whose weights lie in GGUF files."""
_YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
_OTHER_SCALING = ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned")


def decoder_fields(model: GgufModel) -> dict[str, Any]:
    """Content of ``config.json``.

    Raises:
        InvalidCheckpoint: another architecture, a missing or senseless key, or a feature that is not there.
    """
    metadata, name = model.metadata, model.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise InvalidCheckpoint(
            f"{metadata.file_name}: architecture {name[:80]!r} is not supported; supported: {known}"
        )
    if EMBEDDING not in model.tensors or len(model.tensors[EMBEDDING].shape) != 2:
        raise InvalidCheckpoint(f"{metadata.file_name} has no tensor {EMBEDDING} of two extents")
    num_heads, hidden = metadata.count(f"{name}.attention.head_count"), metadata.count(f"{name}.embedding_length")
    head_dim = _head_dim(metadata, name, num_heads, hidden)
    _refuse_features(metadata, name)
    fields = {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "vocab_size": model.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.count(f"{name}.feed_forward_length"),
        "num_hidden_layers": metadata.count(f"{name}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.count(f"{name}.attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.count(f"{name}.context_length"),
        "rms_norm_eps": metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(model, name, head_dim),
        "tie_word_embeddings": OUTPUT not in model.tensors,
        "attention_bias": name != "qwen2" and "blk.0.attn_q.bias" in model.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in model.tensors,
    }
    if not set(model.block_names) <= set(FLOAT_BLOCKS):
        fields["quantization_config"] = {"quant_method": METHOD, "block_types": list(model.block_names)}
    return fields


def _head_dim(metadata: GgufMetadata, name: str, num_heads: int, hidden: int) -> int:
    head_dim = metadata.count(f"{name}.attention.key_length", hidden // num_heads or 1)
    value_dim = metadata.count(f"{name}.attention.value_length", head_dim)
    rotated = metadata.count(f"{name}.rope.dimension_count", head_dim)
    if not rotated == head_dim == value_dim:
        raise InvalidCheckpoint(
            f"{metadata.file_name}: heads of {head_dim} and {value_dim} features, {rotated} of them rotated: "
            "three equal numbers are supported"
        )
    return head_dim


def _refuse_features(metadata: GgufMetadata, name: str) -> None:
    if metadata.count(f"{name}.expert_count", 0, least=0):
        raise InvalidCheckpoint(f"{metadata.file_name}: experts ({name}.expert_count) are not supported in GGUF")
    context = metadata.count(f"{name}.context_length")
    if 0 < metadata.count(f"{name}.attention.sliding_window", 0, least=0) < context:
        raise InvalidCheckpoint(f"{metadata.file_name}: {name}.attention.sliding_window is not supported in GGUF")


def _rope(model: GgufModel, name: str, head_dim: int) -> dict[str, Any]:
    metadata = model.metadata
    theta = metadata.number(f"{name}.rope.freq_base", 10000.0)
    kind, factor = _scaling(metadata, name)
    if ROPE_FACTORS in model.tensors:
        if kind != "none" or not 1 < theta < 1e30:
            raise InvalidCheckpoint(f"{metadata.file_name}: tensor {ROPE_FACTORS} beside other rotary scaling")
        return llama3_rope(model.tensors[ROPE_FACTORS], theta, head_dim)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    rope = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    return rope | (_yarn(metadata, name) if kind == "yarn" else {})


def _scaling(metadata: GgufMetadata, name: str) -> tuple[str, float]:
    """Kind of rotary scaling, and its factor; a file that states a factor alone means linear, as llama.cpp reads it."""
    begin, old = f"{name}.rope.scaling.", f"{name}.rope.scale_linear"
    known = {f"{name}.{key}" for key in (*_YARN, *_OTHER_SCALING)}
    stated = [key for key in metadata if key.startswith(begin)]
    if strange := [key for key in stated if key not in known]:
        raise InvalidCheckpoint(f"{metadata.file_name}: {strange[0][:80]} is not supported")
    if old in metadata:  # as it was called before 2023-10
        if stated:
            raise InvalidCheckpoint(f"{metadata.file_name}: both {old} and {stated[0]}")
        return "linear", metadata.number(old)
    is_factor = metadata.number(f"{begin}factor", 1.0) not in (0.0, 1.0)
    kind = metadata.text(f"{begin}type", "linear" if is_factor else "none")
    if kind not in ("none", "linear", "yarn"):
        raise InvalidCheckpoint(
            f"{metadata.file_name}: rotary scaling {kind[:80]!r} is not supported; supported: linear, yarn"
        )
    return kind, 1.0 if kind == "none" else metadata.number(f"{begin}factor")


def _yarn(metadata: GgufMetadata, name: str) -> dict[str, Any]:
    """Further parameters of yarn; the first three settings are those that ``parse_rope`` reads."""
    found = {key: metadata.number(f"{name}.{key}") for key in _YARN if f"{name}.{key}" in metadata}
    return {_YARN[key]: int(value) if key.endswith("length") else value for key, value in found.items()}
