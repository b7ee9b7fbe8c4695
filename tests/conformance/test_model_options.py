"""Options of families by every kernel that has them: exact torch, blocks of MXFP4, text parts, adapters, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.adapter_files import read_adapter_files
from stratos.engine.checkpoint.quantised_weight import mxfp4_weight
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.seeing_models import save_seeing
from tests.support.reference.tiny_models import (
    FAMILIES,
    greedy_reference,
    reference_logprobs,
    save_adapter,
    save_tiny,
)
from tests.support.worlds.plan_driver import FULL, Driver, all_logprobs, load_runner, teacher_forced

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "glm4"])
def test_exact_torch_caps_scores_and_knows_sinks(tmp_path: Path, name: str) -> None:
    prefix, changes = FAMILIES[name]
    model = save_tiny(tmp_path, prefix, **changes)
    runner = load_runner(tmp_path, native_kernels=False, exact=True)
    assert "torch-tiled" in runner.info.identity.numerics_id
    reference = reference_logprobs(model, PROMPT)
    whole, chunked = teacher_forced(runner, PROMPT, 41), teacher_forced(runner, PROMPT, 7)
    assert (whole[-1] - reference[-1]).abs().max() < TOLERANCE
    assert torch.equal(whole[-1], chunked[-1])


def floats_of(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [experts, outputs, inputs]."""
    pairs = zip(blocks, scales, strict=True)
    return torch.stack([mxfp4_weight(block.flatten(1), scale).floats() for block, scale in pairs])


def test_blocks_of_mxfp4_are_the_floats_that_transformers_makes_of_them() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (2, 6, 4, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 132, (2, 6, 4), generator=generator, dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(floats_of(blocks, scales), theirs.transpose(1, 2))


def save_coded(path: Path) -> Any:
    """Write a tiny gpt-oss whose experts are blocks of MXFP4; returns the model of the floats."""
    prefix, changes = FAMILIES["gpt-oss"]
    model = save_tiny(path, prefix, **{**changes, "hidden_size": 64, "intermediate_size": 32})
    file = path / "model.safetensors"
    tensors, generator = load_file(file), torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, num_in, num_out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, num_out, num_in // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 124, (experts, num_out, num_in // 32), generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        model.get_parameter(name).data.copy_(floats_of(blocks, scales).transpose(1, 2))
    save_file(tensors, file)
    config = (path / "config.json").read_text(encoding="utf-8")
    stated = '"quantization_config": {"quant_method": "mxfp4"}, '
    (path / "config.json").write_text(config.replace("{", "{" + stated, 1), encoding="utf-8")
    return model


@pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")
def test_experts_in_mxfp4_stay_codes_where_there_are_products_for_them(tmp_path: Path) -> None:
    reference = reference_logprobs(save_coded(tmp_path), PROMPT)
    coded, widened = load_runner(tmp_path), load_runner(tmp_path, native_kernels=False)
    for runner in (coded, widened):
        assert (teacher_forced(runner, PROMPT, 41)[-1] - reference[-1]).abs().max() < TOLERANCE
    assert (coded.info.quantization, "mxfp4" in coded.info.identity.numerics_id) == ("mxfp4", True)
    assert "mxfp4" not in widened.info.identity.numerics_id
    experts = 2 * 5 * 3 * 64 * 32  # of two layers
    assert widened.info.step_weight_bytes - coded.info.step_weight_bytes == pytest.approx(experts * (4 - 0.625))
    assert torch.equal(teacher_forced(coded, PROMPT, 41)[-1], teacher_forced(coded, PROMPT, 7)[-1])
    rounded = load_runner(tmp_path, quantization="int8")
    assert (teacher_forced(rounded, PROMPT, 41)[-1] - reference[-1]).abs().max() < 1.0


def test_a_scale_of_mxfp4_that_is_no_number_is_refused(tmp_path: Path) -> None:
    save_coded(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 0] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"1\.mlp\.experts\.down_proj_scales holds a scale that is no number"):
        load_runner(tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize(("whole", "name"), [("Gemma3", "gemma3"), ("Mistral3", "mistral-window")])
def test_the_text_part_of_a_model_that_sees_images_is_served(
    tmp_path: Path, whole: str, name: str, prefix: str
) -> None:
    model = save_seeing(tmp_path, whole, name)
    path = tmp_path / "model.safetensors"
    renamed = {key.replace("language_model.model.", prefix): tensor for key, tensor in load_file(path).items()}
    assert {key.split(".")[0] for key in renamed} > {"vision_tower", "multi_modal_projector"}
    save_file(renamed, path)
    runner = load_runner(tmp_path)
    for chunk in (7, 41):
        found = teacher_forced(runner, PROMPT, chunk)
        assert (found[-1] - reference_logprobs(model, PROMPT)[-1]).abs().max() < TOLERANCE
    driver = Driver(runner)
    stream = driver.stream(PROMPT)
    driver.generate([stream], 12)
    assert stream.tokens[len(PROMPT) :] == greedy_reference(model, PROMPT, 12)


def test_layers_that_draft_are_not_read_and_others_behind_the_last_are_refused(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["glm4-moe"]
    model = save_tiny(tmp_path, prefix, **changes)
    file, drafting = tmp_path / "model.safetensors", "model.layers.2.eh_proj.weight"
    tensors = load_file(file)
    save_file({**tensors, drafting: torch.ones(2, 2)}, file)
    assert (
        teacher_forced(load_runner(tmp_path), PROMPT, 41)[-1] - reference_logprobs(model, PROMPT)[-1]
    ).abs().max() < TOLERANCE
    save_file({**tensors, "model.layers.3.eh_proj.weight": torch.ones(2, 2)}, file)
    with pytest.raises(InvalidCheckpoint, match=r"model\.layers\.3\.eh_proj\.weight"):
        load_runner(tmp_path)


def test_a_dynamic_rotation_is_that_of_the_longest_context_that_is_served(tmp_path: Path) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    model = save_tiny(tmp_path, "Llama", rope_parameters=parameters, head_dim=16, max_position_embeddings=32)
    long = [(i * 37 + 11) % 97 for i in range(64)]
    found = {longest: load_runner(tmp_path, max_model_len=longest) for longest in (0, 64, 32)}
    assert found[0].info.max_model_len == 64
    for longest, prompt in ((0, long), (64, long), (32, long[:31])):
        reference = reference_logprobs(model, prompt)[-1]
        assert (teacher_forced(found[longest], prompt, 7)[-1] - reference).abs().max() < TOLERANCE
    keys = {runner.info.identity.rope_variant for runner in found.values()}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("name", "targets"),
    [("phi4-mini", ["qkv_proj", "o_proj", "gate_up_proj"]), ("glm4", ["q_proj", "k_proj", "v_proj", "gate_up_proj"])],
)
def test_adapters_of_families_whose_rows_are_reordered(tmp_path: Path, name: str, targets: list[str]) -> None:
    from peft import PeftModel

    prefix, changes = FAMILIES[name]
    model = save_tiny(tmp_path / "model", prefix, **changes)
    save_adapter(tmp_path / "adapter", model, rank=3, targets=targets, seed=1)
    files, runner = read_adapter_files(tmp_path / "adapter"), load_runner(tmp_path / "model")
    runner.load_adapter(files)
    driver = Driver(runner)
    stream = driver.stream(PROMPT, adapter=files.digest, params=FULL)
    driver.generate([stream], 3)
    plain = reference_logprobs(model, stream.tokens[:-1])[len(PROMPT) - 1 :]
    adapted: Any = PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    reference = reference_logprobs(adapted, stream.tokens[:-1])[len(PROMPT) - 1 :]
    assert (torch.stack([all_logprobs(token) for token in stream.sampled]) - reference).abs().max() < TOLERANCE
    assert (plain - reference).abs().max() > 100 * TOLERANCE


def test_quantising_rows_that_are_reordered_at_load_keeps_their_order(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["glm4"]
    save_tiny(tmp_path, prefix, **{**changes, "hidden_size": 64, "intermediate_size": 64})
    floats, rounded = (
        teacher_forced(load_runner(tmp_path, **kind), PROMPT, 41) for kind in ({}, {"quantization": "int8"})
    )
    assert 0 < (floats[-1] - rounded[-1]).abs().max() < 0.5


def test_families_with_sinks_cannot_be_given_a_window(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["gemma2"]
    save_tiny(tmp_path, prefix, **{**changes, "sliding_window": None, "layer_types": ["full_attention"] * 2})
    with pytest.raises(InvalidCheckpoint, match="rotate unlike or have sinks"):
        load_runner(tmp_path, attention_window=16)
