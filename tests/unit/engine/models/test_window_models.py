"""A model whose every layer has a sliding window runs in a bounded number of blocks, with the same output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.reference.tiny_models import greedy_reference, save_tiny
from tests.support.worlds.core_driver import Outcomes, make_core, make_request, run
from tests.support.worlds.plan_driver import load_runner

PROMPTS = [[(i * 31 + 7 * k) % 97 for i in range(21 + 9 * k)] for k in range(3)]
NUM_TOKENS, WINDOW = 70, 9
PARAMS: dict[str, Any] = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0.0, "num_logprobs": 2}
KERNELS: dict[str, dict[str, Any]] = {
    "native": {},
    "torch-tiled": {"native_kernels": False},
    "torch-paged": {"native_kernels": False, "exact": False},
}
BLOCK_BYTES = 4 * 2 * 2 * 2 * 10 * 4


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("model")
    return path, save_tiny(path, "Mistral", sliding_window=WINDOW, tie_word_embeddings=False)


def outcomes_of(path: Path, num_blocks: int, runner: dict[str, Any], **config: Any) -> Outcomes:
    core = make_core(
        path, kv_pool_bytes=num_blocks * BLOCK_BYTES, runner=runner, max_num_batched_tokens=16, **config
    )  # fmt: skip
    outcomes = run(core, *(make_request(prompt, f"r{k}", **PARAMS) for k, prompt in enumerate(PROMPTS)))
    assert not outcomes.errors
    return outcomes


@pytest.mark.parametrize("kernels", KERNELS)
def test_release_changes_no_bit(mistral: tuple[Path, Any], kernels: str) -> None:
    """30 blocks of 4 tokens hold three windows; all tokens of one of the sequences alone are up to 28."""
    kept = outcomes_of(mistral[0], 100, KERNELS[kernels], window_release=False)
    released = outcomes_of(mistral[0], 30, KERNELS[kernels])
    if kernels == "torch-paged":  # not exact: other batches have other last bits
        assert {key: o.ids for key, o in released.choices.items()} == {k: o.ids for k, o in kept.choices.items()}
    else:
        assert released.choices == kept.choices


def test_output_equals_transformers(mistral: tuple[Path, Any]) -> None:
    path, model = mistral
    outcomes = outcomes_of(path, 30, {})
    for k, prompt in enumerate(PROMPTS):
        assert outcomes.choices[f"r{k}", 0].ids == greedy_reference(model, prompt, NUM_TOKENS), k


def test_only_models_with_a_window_in_every_layer_release(mistral: tuple[Path, Any], tmp_path: Path) -> None:
    assert load_runner(mistral[0]).info.window == WINDOW
    save_tiny(
        tmp_path, "Qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1, tie_word_embeddings=False
    )  # fmt: skip
    assert load_runner(tmp_path).info.window == 0
