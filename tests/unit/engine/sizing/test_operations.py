"""Operations of a token: two for each weight that it is multiplied with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stratos.engine.checkpoint.families import MODEL_TYPES
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.checkpoint.tensor_names import EMBEDDING, LM_HEAD, expected_shapes
from stratos.engine.sizing.operations import layer_operations, output_operations

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def parse(model_type: str, **changes: Any) -> DecoderConfig:
    return parse_decoder_config({**SIZES, "architectures": [MODEL_TYPES[model_type]], **changes})


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "phi3"])
def test_every_matrix_of_a_layer_counts_twice_and_the_output_layer_for_sampled_tokens(model_type: str) -> None:
    model = parse(model_type)
    matrices = {name: math.prod(shape) for name, shape in expected_shapes(model) if len(shape) == 2}
    assert output_operations(model) == 2 * matrices.pop(LM_HEAD)
    del matrices[EMBEDDING]
    assert layer_operations(model) == 2 * sum(matrices.values())


def test_of_experts_those_count_that_a_token_goes_to() -> None:
    few, all_of_them = parse("qwen3_moe", **EXPERTS), parse("qwen3_moe", **{**EXPERTS, "num_experts_per_tok": 8})
    matrices = [math.prod(shape) for name, shape in expected_shapes(all_of_them) if len(shape) == 2]
    tables = 2 * SIZES["vocab_size"] * SIZES["hidden_size"]
    assert layer_operations(all_of_them) == 2 * (sum(matrices) - tables)
    assert layer_operations(all_of_them) - layer_operations(few) == 2 * 3 * 6 * 3 * 24 * 32, (
        "layers x experts x matrices"
    )
