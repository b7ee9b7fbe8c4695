"""Configurations of quantised checkpoints: how their weights are called, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.quantisation_config import parse_quantisation, weights_label
from tests.support.reference.quantised_models import CONFIGS


@pytest.mark.parametrize(
    ("config", "setting", "expected"),
    [
        ({}, "auto", ""),
        ({}, "int4", "int4-at-load"),
        ({"quantization_config": CONFIGS["gptq"]}, "auto", "int4"),
        ({"quantization_config": CONFIGS["compressed-w8a8"]}, "auto", "int8-rows"),
        (
            {"quantization_config": {"quant_method": "gguf", "block_types": ["F32", "Q6_K", "Q4_K"]}},
            "auto",
            "gguf-q4_k+q6_k",
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "auto", "mxfp4"),
        ({}, "int4+head", "int4-and-head-at-load"),
        ({"quantization_config": CONFIGS["nf4-double"]}, "auto", "nf4"),
        ({"quantization_config": CONFIGS["llm-int8"]}, "auto", "llm-int8"),
        ({"quantization_config": CONFIGS["modelopt-nvfp4"]}, "auto", "nvfp4"),
        ({"quantization_config": 7}, "auto", "unknown"),
    ],
)
def test_a_list_of_models_calls_weights_by_their_scheme(config: dict[str, Any], setting: str, expected: str) -> None:
    assert weights_label(config, setting) == expected


def of_modelopt(algorithm: str, **changes: Any) -> dict[str, Any]:
    """A configuration with groups of layers, as the library writes it."""
    weights = {"dynamic": False, "num_bits": 4 if algorithm == "NVFP4" else 8, "type": "float"}
    weights |= {"group_size": 16} if algorithm == "NVFP4" else {}
    group = {"weights": {**weights, **changes}, "input_activations": weights, "targets": ["Linear"]}
    return {"quant_method": "modelopt", "quant_algo": algorithm, "config_groups": {"group_0": group}}


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8"])
def test_groups_of_modelopt_that_say_what_the_algorithm_does_are_read(algorithm: str) -> None:
    config = parse_quantisation({"quantization_config": of_modelopt(algorithm)})
    assert config is not None
    assert config.label == algorithm.lower()


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"bits": 4}, "method None is not supported; supported: compressed-tensors"),
        ({"quant_method": "hqq"}, "method 'hqq'"),
        ({"quant_method": "bitsandbytes"}, "neither load_in_4bit nor load_in_8bit"),
        ({**CONFIGS["nf4"], "load_in_8bit": True}, "both load_in_4bit and load_in_8bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "of type 'fp4'"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 4.0}, "llm_int8_threshold 4.0"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ'"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size 32"),
        (of_modelopt("NVFP4", num_bits=8), "num_bits 8; supported for NVFP4: 4"),
        (of_modelopt("NVFP4", group_size=32), "group_size 32; supported for NVFP4: 16"),
        (of_modelopt("FP8", type="int"), "type 'int'; supported for FP8: float"),
        (of_modelopt("FP8", group_size=128), "group_size 128"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "config_groups": [7]}, r"config_groups says \[7\]"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "quantized_layers": {"a": {"quant_algo": "FP8"}}},
            "quantized_layers",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "nvfp4 has groups of 16 by strategy tensor_group",
        ),
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "gguf"}, "block_types must be a list"),
        ({"quant_method": "gguf", "block_types": ["F16"]}, "block_types must be a list of .*some no floats"),
        ({"quant_method": "gguf", "block_types": ["IQ1_S"]}, "block_types must be a list"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 33}, "groups of 33"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 of kind 'e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": [1, 128]}, "two equal numbers"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "no config_groups"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3}}}},
            "weights of 3 bits",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "strategy": "tensor_group"}}},
            },
            "strategy 'tensor_group'",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 64}}},
            },
            "mxfp4 has groups of 32",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["re:("],
                "config_groups": {"g": {"weights": {"num_bits": 8}}},
            },
            "is not a pattern",
        ),
    ],
)
def test_a_scheme_that_is_not_there_is_refused_by_name(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        parse_quantisation({"quantization_config": stated})


@pytest.mark.parametrize("pattern", ["re:a{99999999999}", "re:" + "(" * 5000])
def test_a_pattern_that_python_cannot_compile_is_refused(pattern: str) -> None:
    stated = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}
    with pytest.raises(InvalidCheckpoint, match="is not a pattern"):
        parse_quantisation({"quantization_config": {**stated, "ignore": [pattern]}})


@pytest.mark.parametrize("field", ["checkpoint_format", "format"])
@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
def test_the_format_of_gptq_says_which_zeros_are_meant(field: str, layout: str) -> None:
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, field: layout}
    config = parse_quantisation({"quantization_config": stated})
    assert config is not None
    assert config.targets[0].stored.zeros_are_less_one is (layout == "gptq")
