"""Reading ``config.json`` of every family: defaults as in ``transformers``, refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import described_files
from stratos.engine.checkpoint.families import MODEL_TYPES
from stratos.engine.checkpoint.families.layers import LAYER_TYPES
from stratos.engine.checkpoint.model_config import SUPPORTED_ARCHITECTURES, parse_decoder_config
from stratos.engine.layers.rotary import inverse_frequencies

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 56,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}


STATED: dict[str, dict[str, Any]] = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""What ``transformers`` has no value for."""


def latent_shapes(config: Any) -> dict[str, tuple[int, int]]:
    """Projections of its first layer."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    with torch.device("meta"):
        attention = DeepseekV3Attention(config, 0)
    return {name: tuple(linear.weight.shape) for name, linear in attention.named_children() if "proj" in name}


def parse(model_type: str, **changes: Any) -> Any:
    return parse_decoder_config({**SIZES, "architectures": [MODEL_TYPES[model_type]], **changes})


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        *((model_type, {}) for model_type in MODEL_TYPES),
        *((model_type, {"sliding_window": None}) for model_type in MODEL_TYPES if model_type != "llama"),
        *((model_type, {"num_key_value_heads": None}) for model_type in ("llama", "qwen2", "qwen3")),
        *((model_type, {"use_sliding_window": True}) for model_type in ("qwen2", "qwen3", "qwen3_moe")),
    ],
)
def test_absent_fields_mean_what_transformers_assumes(model_type: str, changes: dict[str, Any]) -> None:
    from transformers import AutoConfig

    changes = STATED.get(model_type, {}) | changes
    theirs = AutoConfig.for_model(model_type, **SIZES, **changes)
    ours = parse(model_type, **changes)
    if ours.latent:
        assert ours.latent.shapes(SIZES["hidden_size"]) == latent_shapes(theirs)
    else:
        assert ours.num_kv_heads == theirs.num_key_value_heads
    head_dim = getattr(theirs, "head_dim", None) or SIZES["hidden_size"] // SIZES["num_attention_heads"]
    assert ours.rotary_dim == head_dim
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    by_type = {kind: theirs.rope_parameters.get(kind, theirs.rope_parameters) for kind in LAYER_TYPES}
    for window, rope in zip(ours.windows, ours.ropes, strict=True):
        parameters = by_type["full_attention" if window is None else "sliding_attention"]
        assert rope.kind == "none" or rope.theta == parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 32
    if hasattr(theirs, "no_rope_layers"):
        assert [rope.kind != "none" for rope in ours.ropes] == [bool(value) for value in theirs.no_rope_layers]
    window = getattr(theirs, "sliding_window", None)
    assert ours.windows == tuple(window if kind == "sliding_attention" else None for kind in types)
    if ours.moe is not None:
        num_experts = getattr(theirs, "num_local_experts", None) or theirs.num_experts
        assert (ours.moe.num_experts, ours.moe.num_chosen) == (num_experts, theirs.num_experts_per_tok)
        counted = getattr(theirs, "n_shared_experts", 0) * ours.moe.intermediate_size
        assert ours.moe.shared_size == getattr(theirs, "shared_expert_intermediate_size", counted)
        assert ours.moe.intermediate_size == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)


def test_a_model_type_stands_in_for_the_architecture() -> None:
    for model_type, architecture in MODEL_TYPES.items():
        fields = {**SIZES, **STATED.get(model_type, {}), "model_type": model_type}
        assert parse_decoder_config(fields).architecture == architecture
    assert set(MODEL_TYPES.values()) == set(SUPPORTED_ARCHITECTURES)


def test_an_unsupported_architecture_is_told_what_is_supported() -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        parse_decoder_config({**SIZES, "architectures": ["BloomForCausalLM"]})
    assert all(name in caught.value.message for name in ("BloomForCausalLM", *SUPPORTED_ARCHITECTURES))


def test_windows_of_published_configurations() -> None:
    assert parse("mistral", sliding_window=4096).windows == (4096,) * 32
    assert parse("mistral", sliding_window=None).windows == (None,) * 32
    unused = parse("qwen2", use_sliding_window=False, sliding_window=131072, max_window_layers=28)
    assert unused.windows == (None,) * 32
    used = parse("qwen2", use_sliding_window=True, sliding_window=131072, max_window_layers=28)
    assert used.windows == (None,) * 28 + (131072,) * 4
    assert parse("qwen3_moe", use_sliding_window=True, sliding_window=7).windows == (7,) * 32


def test_layers_with_experts() -> None:
    assert parse("mixtral").moe.layers == frozenset(range(32))
    moe = parse("qwen3_moe", decoder_sparse_step=3, mlp_only_layers=[5, 31], num_experts=9).moe
    assert moe.layers == frozenset(range(2, 32, 3)) - {5}
    assert moe.num_experts == parse("qwen3_moe", num_local_experts=9).moe.num_experts == 9
    assert parse("qwen3").moe is None
    assert parse("glm4_moe").moe.layers == frozenset(range(1, 32))
    assert parse("glm4_moe", n_routed_experts=9).moe.num_experts == 9


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window must be a positive integer"),
        ("mistral", {"sliding_window": "all"}, "sliding_window must be a positive integer"),
        ("qwen2", {"use_sliding_window": "yes"}, "use_sliding_window must be true or false"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "x"}, "max_window_layers must be an integer"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types must name one of full_attention"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 32}, "layer_types must name one of full_attention"),
        ("qwen3", {"layer_types": [{}] * 32}, "layer_types must name one of full_attention"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 32}, "sliding_window is not in use"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, but there are 8 experts"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts must be a positive integer"),
        ("qwen3_moe", {"mlp_only_layers": [1.5]}, "mlp_only_layers must be a list of layer indices"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive integer"),
        ("glm4_moe", {"first_k_dense_replace": 33}, "first_k_dense_replace must be 0 .. 32, not 33"),
        ("glm4_moe", {"n_group": 3}, "n_group 3 and topk_group 1 do not divide 128 experts"),
        ("glm4_moe", {"n_group": 32, "topk_group": 1}, "so that 8 can be chosen"),
        ("glm4_moe", {"n_group": 128, "topk_group": 64}, "n_group leaves groups of one expert"),
        ("glm4_moe", {"n_shared_experts": -1}, "n_shared_experts must be a positive integer"),
        ("llama", {"rope_scaling": {"type": "dynamic"}}, "factor must be a positive number"),
        ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one flat object"),
        ("qwen2", {"rope_scaling": {"type": "ntk"}}, "rope type 'ntk' is not supported"),
        ("phi3", {"partial_rotary_factor": 0.3}, "is no even number of them"),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "short_factor must be a list of 2 numbers",
        ),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must be 0 or 1 for each of 32 layers"),
        ("gemma3_text", {"hidden_activation": "relu"}, "hidden_act 'relu' is not supported"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ("qwen2", {"is_causal": False}, "is_causal is not supported"),
        ("granite", {"residual_multiplier": -1}, "residual_multiplier must be a positive number"),
        ("gpt_oss", {"swiglu_alpha": 2.0}, "swiglu_alpha must be 1.702"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": 1}}, "truncate must be true or false"),
        ("qwen2", {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_theta must be above 1"),
    ],
)
def test_a_senseless_field_is_refused_by_name(model_type: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        parse(model_type, **changes)


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 4.0, "original_max_position_embeddings": 1024},
        {"factor": 4.0},
        {"factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 16, "beta_slow": 2, "truncate": False},
        {"factor": 40.0, "original_max_position_embeddings": 128, "mscale": 0.7, "mscale_all_dim": 1.0},
        {"factor": 2.0, "original_max_position_embeddings": 2048, "attention_factor": 1.5},
    ],
)
def test_yarn_equals_transformers(scaling: dict[str, Any]) -> None:
    from transformers import Qwen2Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "yarn", "rope_theta": 1e6, **scaling}
    theirs = Qwen2Config(**{**SIZES, "hidden_size": 4096, "rope_parameters": dict(parameters)})
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](theirs)
    ours = parse("qwen2", hidden_size=4096, rope_parameters=parameters).rope
    assert torch.allclose(inverse_frequencies(ours, 128), frequencies, rtol=1e-6, atol=0)
    assert ours.attention_factor == pytest.approx(attention_factor)


def test_rope_variants_of_different_models_differ() -> None:
    scaled = [
        {"rope_type": "yarn", "factor": f, "original_max_position_embeddings": o} for f in (2.0, 4.0) for o in (64, 65)
    ]
    rows = [{}, *scaled, {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16}]
    assert len({parse("qwen2", rope_parameters=row).rope.variant for row in rows}) == len(rows)


@pytest.mark.parametrize("longest", [16, 64])
def test_longrope_equals_transformers_by_the_longest_context_that_is_served(longest: int) -> None:
    from transformers import Phi3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [3.0, 4.0, 9.0]}
    fields = {
        "hidden_size": 256, "max_position_embeddings": 64, "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16, **factors,
        },
    }  # fmt: skip
    theirs = Phi3Config(**{**SIZES, **fields})
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, seq_len=longest)
    ours = parse("phi3", **fields).for_context(longest).rope
    assert torch.allclose(inverse_frequencies(ours, 8), torch.cat((frequencies, torch.zeros(1))), rtol=1e-6, atol=0)
    assert ours.attention_factor == pytest.approx(attention_factor)


@pytest.mark.parametrize("longest", [2048, 4096, 4097, 9000, 12288])
def test_a_dynamic_rotation_equals_transformers_by_the_longest_context_that_is_served(longest: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    theirs = LlamaConfig(**{**SIZES, "hidden_size": 4096, "rope_parameters": dict(parameters)})
    frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, seq_len=longest)
    model = parse("llama", hidden_size=4096, rope_scaling={"type": "dynamic", "factor": 3.0})
    assert model.max_model_len == 3 * SIZES["max_position_embeddings"]
    ours = model.for_context(longest).rope
    assert torch.allclose(inverse_frequencies(ours, 128), frequencies, rtol=1e-6, atol=0)


def test_a_published_gemma_3_says_its_rotations_apart() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    model = parse("gemma3_text", rope_scaling=scaling, rope_theta=1e6, rope_local_base_freq=1e4, sliding_window=512)
    assert [(rope.kind, rope.theta) for rope in model.ropes[4:6]] == [("default", 1e4), ("linear", 1e6)]
    assert model.windows[4:6] == (512, None)
    assert model.rope_variant.startswith("default:10000.0|linear:1000000.0:8.0/0,0,0,0,0,1,")


def test_the_text_part_of_a_model_that_sees_images() -> None:
    text = {**SIZES, "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh"}
    model = parse_decoder_config({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (model.architecture, model.is_text_part, model.hidden_size) == ("Gemma3ForCausalLM", True, 128)


def test_a_model_whose_queries_grow_ends_where_they_begin_to(tmp_path: Path) -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    rope = {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 256, "llama_4_scaling_beta": 0.1,
    }  # fmt: skip
    text = {**SIZES, "model_type": "ministral3", "rope_parameters": rope}
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = parse_decoder_config(config).max_model_len
    assert served == described_files(tmp_path).max_model_len
    growth = get_llama_4_attn_scale(torch.arange(served + 1)[None], 0.1, 256).flatten()
    assert bool((growth[:served] == 1).all())
    assert growth[served] > 1
    del rope["llama_4_scaling_beta"]
    assert parse_decoder_config(config).max_model_len == SIZES["max_position_embeddings"]
