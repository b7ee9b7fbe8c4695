"""Metadata of a GGUF file as fields of ``config.json``, and features that are refused by name."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.gguf.decoder_fields import decoder_fields
from stratos.core.files.gguf.parts import read_gguf
from tests.support.reference.gguf_files import LLAMA, Stored, gguf_bytes, llama_tensors, write, zeros


def fields_of(folder: Path, tensors: dict[str, Stored] | None = None, **changes: Any) -> dict[str, Any]:
    """Fields of the tiny Llama with some keys changed, below ``llama.``; ``__`` stands for a dot."""
    keys = {**LLAMA, **{f"llama.{name.replace('__', '.')}": item for name, item in changes.items()}}
    return decoder_fields(read_gguf(write(folder / "x.gguf", gguf_bytes(keys, tensors or llama_tensors(264)))))


def test_a_llama_has_the_fields_of_its_keys(tmp_path: Path) -> None:
    assert fields_of(tmp_path) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 264,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "quantization_config": {"quant_method": "gguf", "block_types": ["F16", "F32", "Q8_0"]},
    }


def test_what_tensors_say(tmp_path: Path) -> None:
    more = {"output.weight": zeros(264, 64), "blk.0.attn_q.bias": zeros(64), "blk.0.ffn_up.bias": zeros(96)}
    found = fields_of(tmp_path, {**llama_tensors(264, "F16"), **more})
    assert not found["tie_word_embeddings"]
    assert found["attention_bias"]
    assert found["mlp_bias"]
    assert "quantization_config" not in found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__scaling__type": "none"}, {"rope_type": "default", "rope_theta": 10000.0}),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
            {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        ),
        ({"rope__scale_linear": 2.0}, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),
        ({"rope__scaling__factor": 4.0}, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
        ({"rope__scaling__factor": 1.0}, {"rope_type": "default", "rope_theta": 10000.0}),
        (
            {"rope__scaling__type": "none", "rope__scaling__factor": 4.0},
            {"rope_type": "default", "rope_theta": 10000.0},
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 32,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__freq_base": 1e6,
            },
            {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 16.0,
            },
        ),
    ],
)
def test_rotary_scaling(tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert fields_of(tmp_path, **changes)["rope_parameters"] == expected


def rope_factors(factor: float, original: int, theta: float, head_dim: int) -> list[float]:
    """Llama 3's, by the published formula."""
    found = []
    for index in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * index / head_dim)
        if wavelength < original / 4:
            found.append(1.0)
        elif wavelength > original:
            found.append(factor)
        else:
            smooth = (original / wavelength - 1) / 3
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


@pytest.mark.parametrize(
    ("factor", "original", "theta", "head_dim"), [(8.0, 8192, 5e5, 128), (32.0, 8192, 5e5, 64), (4.0, 32, 500.0, 16)]
)
def test_rotary_scaling_of_llama_3_is_found_in_its_factors(
    tmp_path: Path, factor: float, original: int, theta: float, head_dim: int
) -> None:
    factors = rope_factors(factor, original, theta, head_dim)
    content = struct.pack(f"<{len(factors)}f", *factors)
    tensors = {**llama_tensors(264), "rope_freqs.weight": Stored((len(factors),), "F32", content)}
    keys = {"rope__freq_base": theta, "attention__key_length": head_dim, "attention__value_length": head_dim}
    assert fields_of(tmp_path, tensors, **keys)["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


@pytest.mark.parametrize("key", ["rope__scale_linear", "rope__scaling__factor"])
def test_factors_beside_another_scaling_are_refused(tmp_path: Path, key: str) -> None:
    content = struct.pack("<8f", *rope_factors(4.0, 32, 500.0, 16))
    tensors = {**llama_tensors(264), "rope_freqs.weight": Stored((8,), "F32", content)}
    with pytest.raises(InvalidCheckpoint, match=r"rope_freqs\.weight beside other rotary scaling"):
        fields_of(tmp_path, tensors, rope__freq_base=500.0, **{key: 2.0})


@pytest.mark.parametrize(
    "factors", [[2.0, 1.0, 8.0, 1.0, 8.0, 8.0, 8.0, 8.0], [math.nan] * 8, [0.5] * 8, [1.0] * 7, [math.inf] * 8]
)
def test_factors_of_no_known_scaling_are_refused(tmp_path: Path, factors: list[float]) -> None:
    content = struct.pack(f"<{len(factors)}f", *factors)
    tensors = {**llama_tensors(264), "rope_freqs.weight": Stored((len(factors),), "F32", content)}
    with pytest.raises(InvalidCheckpoint, match=r"tensor rope_freqs\.weight"):
        fields_of(tmp_path, tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "experts"),
        ({"attention__sliding_window": 64}, "sliding_window"),
        ({"rope__dimension_count": 8}, "heads of 16 and 16 features, 8 of them rotated"),
        ({"attention__key_length": 32, "attention__value_length": 16}, "heads of 32 and 16 features"),
        ({"rope__scaling__type": "longrope"}, "rotary scaling 'longrope'"),
        ({"rope__scaling__type": "linear"}, r"llama\.rope\.scaling\.factor is missing"),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__attn_factor": 1.5},
            r"rope\.scaling\.attn_factor is not supported",
        ),
        ({"rope__scaling__attn_factor": 1.5}, r"rope\.scaling\.attn_factor is not supported"),
        ({"rope__scale_linear": 2.0, "rope__scaling__type": "none"}, r"both llama\.rope\.scale_linear and"),
        ({"attention__head_count": [4]}, "head_count must be an integer"),
        ({"block_count": "2"}, "block_count must be an integer"),
        ({"attention__layer_norm_rms_epsilon": math.nan}, "must be a finite number"),
    ],
)
def test_a_feature_that_is_not_there_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        fields_of(tmp_path, **changes)


def test_another_architecture_and_a_missing_embedding_are_refused(tmp_path: Path) -> None:
    keys = {**LLAMA, "general.architecture": "mamba"}
    path = write(tmp_path / "x.gguf", gguf_bytes(keys, llama_tensors(264)))
    with pytest.raises(InvalidCheckpoint, match="'mamba' is not supported; supported: llama, qwen2, qwen3"):
        decoder_fields(read_gguf(path))
    with pytest.raises(InvalidCheckpoint, match=r"no tensor token_embd\.weight"):
        fields_of(tmp_path, {"output_norm.weight": zeros(64)})
