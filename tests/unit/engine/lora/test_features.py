"""What PEFT can save in addition to plain LoRA, against ``peft`` itself; and bits that do not depend on the batch."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stratos.common.errors import InvalidAdapter
from stratos.core.files.adapter_files import read_adapter_files
from tests.support.reference.lora_features import EVERYTHING, FEATURES, save
from tests.support.reference.tiny_models import reference_logprobs, save_tiny
from tests.support.worlds.plan_driver import FULL, Driver, Stream, all_logprobs, load_runner

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Qwen2 has biases on q, k and v, and on nothing else."""
    path = tmp_path_factory.mktemp("base")
    return save_tiny(path, "Qwen2", tie_word_embeddings=False), path


@torch.no_grad()
def merged_logprobs(path: Path, folder: Path, ids: list[int]) -> torch.Tensor:
    """Log probabilities of the base model with the adapter merged into its weights by ``peft``."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        merged = PeftModel.from_pretrained(model, folder).merge_and_unload().eval()
    return reference_logprobs(merged, ids)


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_each_feature_equals_merged_weights(base: tuple[Any, Path], tmp_path: Path, feature: str) -> None:
    model, path = base
    files = save(tmp_path, model, **FEATURES[feature])
    runner = load_runner(path)
    runner.load_adapter(files)
    driver = Driver(runner)
    streams = [driver.stream(PROMPT, params=FULL, adapter=digest) for digest in (files.digest, "")]
    driver.generate(streams, 1, chunk=7)
    adapted, plain = (all_logprobs(stream.sampled[0]) for stream in streams)
    assert (adapted - merged_logprobs(path, tmp_path, PROMPT)[-1]).abs().max() < TOLERANCE
    assert (plain - reference_logprobs(model, PROMPT)[-1]).abs().max() < TOLERANCE
    assert (adapted - plain).abs().max() > 0.01, "the adapter does something"


def test_an_adapter_of_a_bare_model_loads(base: tuple[Any, Path], tmp_path: Path) -> None:
    """Trained on ``Qwen2Model``: the same tensors with one ``model.`` less in their names."""
    model, path = base
    whole = save(tmp_path / "whole", model, target_modules=["q_proj"])
    (tmp_path / "bare").mkdir()
    tensors = load_file(tmp_path / "whole" / "adapter_model.safetensors")
    bare = {name.replace("model.model.model.", "model.model."): t for name, t in tensors.items()}
    save_file(bare, tmp_path / "bare" / "adapter_model.safetensors")
    config = (tmp_path / "whole" / "adapter_config.json").read_text()
    (tmp_path / "bare" / "adapter_config.json").write_text(config)
    files = read_adapter_files(tmp_path / "bare")
    assert (files.shapes, files.scalings) == (whole.shapes, whole.scalings)
    runner = load_runner(path)
    runner.load_adapter(files)


def run(runner: Any, jobs: list[tuple[list[int], str]], chunk: int) -> list[list[bytes]]:
    """Bits of all log probabilities of four tokens after each prompt, all in one batch."""
    driver = Driver(runner)
    streams: list[Stream] = [driver.stream(prompt, params=FULL, adapter=digest) for prompt, digest in jobs]
    driver.generate(streams, 4, chunk=chunk)
    return [[all_logprobs(token).numpy().tobytes() for token in stream.sampled] for stream in streams]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bits_of_an_adapted_stream_do_not_depend_on_its_batch(
    base: tuple[Any, Path], tmp_path: Path, dtype: str
) -> None:
    model, path = base
    digests = [""]
    runner = load_runner(path, dtype=dtype, max_resident_adapters=4)
    for rank in (1, 8, 64):
        files = save(tmp_path / str(rank), model, seed=rank, r=rank, target_modules=EVERYTHING, bias="all")
        runner.load_adapter(files)
        digests.append(files.digest)
    jobs = [(PROMPT[i : i + 3 + 4 * i], digests[i % len(digests)]) for i in range(8)]
    together = run(runner, jobs, chunk=7)
    assert [run(runner, [job], chunk=1 << 20)[0] for job in jobs] == together
    assert run(runner, jobs[::-1], chunk=3)[::-1] == together
    assert run(load_runner(path, dtype=dtype), [jobs[0]], chunk=5) == together[:1], "the base model's too"


def test_sorting_rows_by_adapter_changes_nothing_but_the_work(base: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = base
    files = [save(tmp_path / str(i), model, seed=i, r=2 + 3 * i, target_modules=EVERYTHING) for i in range(3)]
    jobs = [(PROMPT[i : i + 9], ["", *(f.digest for f in files)][(i * 3) % 4]) for i in range(9)]
    results = []
    for is_sorted in (True, False):
        runner = load_runner(path, sorted_adapters=is_sorted)
        for one in files:
            runner.load_adapter(one)
        results.append(run(runner, jobs, chunk=4))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, r"modules_to_save replaces whole modules \(lm_head, embed"),
        ({"lora_bias": True}, "only plain LoRA is supported .lora_bias"),
        ({"alora_invocation_tokens": [1]}, "only plain LoRA"),
        ({"trainable_token_indices": [1]}, "only plain LoRA"),
        ({"bias": "some"}, "bias must be none, all or lora_only"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' changed the base weights"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern must be an integer"),
        ({"rank_pattern": {"q_proj": 3}}, "does not have rank 3"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern must be an object"),
        ({"rank_pattern": {"(a+)+$": 4}}, "not supported as a pattern"),
        ({"alpha_pattern": {"q_proj": float("nan")}}, "alpha_pattern must be a positive number"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern must be a positive number"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    base: tuple[Any, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    save(tmp_path, base[0], target_modules=["q_proj"])
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidAdapter, match=message):
        read_adapter_files(tmp_path)


def test_a_bias_that_the_model_does_not_have_is_refused(base: tuple[Any, Path], tmp_path: Path) -> None:
    save(tmp_path, base[0], target_modules=["q_proj"])
    weights = tmp_path / "adapter_model.safetensors"
    name = "base_model.model.model.layers.0.self_attn.o_proj.bias"
    save_file({**load_file(weights), name: torch.zeros(48)}, weights)
    with pytest.raises(InvalidAdapter, match="o_proj of this model has no bias"):
        load_runner(base[1]).load_adapter(read_adapter_files(tmp_path))
