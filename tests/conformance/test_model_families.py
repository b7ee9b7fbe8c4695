"""Every family computes what ``transformers`` computes, in any chunking and batch, from either checkpoint layout."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.kv import KvRange
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.tiny_models import BASE, FAMILIES, greedy_reference, reference_logprobs, save_tiny
from tests.support.worlds.plan_driver import BLOCK_SIZE, FULL, Driver, Stream, all_logprobs, load_runner, teacher_forced

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
PROMPTS = [PROMPT[:1], PROMPT[:2], PROMPT[5:9], PROMPT[3:20], PROMPT]
TOLERANCE = 1e-4
NUM_TOP, NUM_TOKENS = 5, 12
PLAIN_TORCH = ["llama", "mistral-window", "mixtral", "gemma3", "gpt-oss"]
"""What else is slow: biases, windows, experts and sinks are where a family's own torch differs."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TorchRunner, Path]:
    """A reference model, the runner of the same folder, and the folder."""
    path = tmp_path_factory.mktemp(request.param)
    prefix, changes = FAMILIES[request.param]
    return save_tiny(path, prefix, **changes), load_runner(path), path


@pytest.mark.parametrize("chunk", [*(pytest.param(count, marks=pytest.mark.slow) for count in (1, 16)), 7, 41])
def test_teacher_forced_logprobs_equal_transformers_in_any_chunking(family: Any, chunk: int) -> None:
    model, runner, _ = family
    ends = [*range(chunk, len(PROMPT), chunk), len(PROMPT)]
    reference = reference_logprobs(model, PROMPT)[[end - 1 for end in ends]]
    assert (teacher_forced(runner, PROMPT, chunk) - reference).abs().max() < TOLERANCE


COMMON = {"odd heads", "own head_dim", "tied", "untied", "groups of 7"}
WANTED = {
    "Llama": {*COMMON, "biases", "derived head_dim", "default rope", "linear rope", "llama3 rope"},
    "Mistral": {*COMMON, "window", "no window"},
    "Qwen2": {*COMMON, "biases", "derived head_dim", "window", "no window", "yarn rope"},
    "Qwen3": {*COMMON, "biases", "window", "no window"},
    "Mixtral": {*COMMON, "derived head_dim", "window", "no window"},
    "Qwen3Moe": {*COMMON, "biases", "window", "no window"},
}


def shape_of(prefix: str, changes: dict[str, Any]) -> set[str]:
    """What is special about a case of ``FAMILIES``."""
    fields = {**BASE, **changes}
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    head_dim, has_bias = fields["head_dim"], fields.get("attention_bias") or prefix == "Qwen2"
    has_window = fields.get("sliding_window") and (prefix in ("Mistral", "Mixtral") or fields.get("use_sliding_window"))
    shape = {f"{fields.get('rope_parameters', {}).get('rope_type', 'default')} rope"}
    shape |= {"window" if has_window else "no window", "tied" if fields["tie_word_embeddings"] else "untied"}
    shape |= {"derived head_dim"} if head_dim is None else set()
    shape |= {"own head_dim"} if head_dim and head_dim * heads != fields["hidden_size"] else set()
    shape |= {"odd heads"} if heads % 2 else set()
    shape |= {"groups of 7"} if heads == 7 * kv_heads else set()
    return shape | ({"biases"} if has_bias else set())


@pytest.mark.parametrize("prefix", WANTED)
def test_the_cases_cover_every_shape_of_the_family(prefix: str) -> None:
    covered = [shape_of(prefix, changes) for name, changes in FAMILIES.values() if name == prefix]
    assert WANTED[prefix] <= set().union(*covered)


def test_greedy_tokens_and_logprobs_equal_transformers_in_a_mixed_batch(family: Any) -> None:
    model, runner, _ = family
    check_greedy(model, runner)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in PLAIN_TORCH else pytest.mark.slow) for name in FAMILIES],
    indirect=True,
)
def test_so_they_do_in_plain_torch(family: Any) -> None:
    model, runner, path = family
    if runner.info.num_state_slots:
        pytest.skip("layers with a state need the C++ kernels")
    check_greedy(model, load_runner(path, native_kernels=False, exact=False))


def check_greedy(model: Any, runner: TorchRunner) -> None:
    streams = generated(runner)
    for stream in streams:
        reference = reference_logprobs(model, stream.tokens[:-1])[stream.num_prompt - 1 :]
        assert [t.token_id for t in stream.sampled] == reference.argmax(-1).tolist()
        assert (torch.stack([all_logprobs(token) for token in stream.sampled]) - reference).abs().max() < TOLERANCE
    assert streams[-1].tokens[len(PROMPT) :] == greedy_reference(model, PROMPT, NUM_TOKENS)


def test_in_bfloat16_each_side_has_the_others_token_on_top_where_they_part(family: Any) -> None:
    model, _, path = family
    model = copy.deepcopy(model).to(torch.bfloat16)
    num_equal = 0
    for stream in generated(load_runner(path, dtype="bfloat16")):
        reference = reference_logprobs(model, stream.tokens[:-1])[stream.num_prompt - 1 :]
        for index, (token, theirs) in enumerate(zip(stream.sampled, reference, strict=True)):
            if token.token_id != theirs.argmax():
                is_close = token.token_id in theirs.topk(NUM_TOP).indices
                is_close &= bool((all_logprobs(token).topk(NUM_TOP).indices == theirs.argmax()).any())
                assert is_close or chooses_closely(model, stream.tokens[: stream.num_prompt + index])
                break
            num_equal += 1
    assert num_equal > NUM_TOKENS * len(PROMPTS) // 4


def generated(runner: TorchRunner) -> list[Stream]:
    driver = Driver(runner)
    streams = [driver.stream(prompt, params=FULL) for prompt in PROMPTS]
    driver.generate(streams, NUM_TOKENS, chunk=7)
    return streams


def chooses_closely(model: Any, ids: list[int]) -> bool:
    """Whether a router is so undecided at the last token that rounding may choose another expert there."""
    probabilities: list[torch.Tensor] = []
    exact = copy.deepcopy(model).float()
    for layer in exact.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(lambda gate, _, out: probabilities.append(scores(gate, out[0][-1])))
    reference_logprobs(exact, ids)
    ordered = [row.sort(descending=True).values for row in probabilities]
    num_chosen = getattr(model.config, "num_experts_per_tok", 0)
    return any(bool(row[num_chosen - 1] - row[num_chosen] < 0.01) for row in ordered if num_chosen < len(row))


def scores(gate: Any, logits: torch.Tensor) -> torch.Tensor:
    """What experts are chosen by."""
    bias = getattr(gate, "e_score_correction_bias", None)
    return logits.softmax(-1) if bias is None else logits.sigmoid() + bias


def test_kv_that_was_moved_or_cached_continues_as_if_computed_here(family: Any) -> None:
    model, runner, path = family
    if runner.info.num_state_slots:
        pytest.skip("test_state_models moves and caches states, too")
    driver, other = Driver(runner), load_runner(path)
    first = driver.stream(PROMPT)
    driver.step([(first, first.row(len(PROMPT) - 1, is_sampling=False))])
    cached = driver.stream(PROMPT, params=FULL)
    num_shared = 20
    cached.blocks = first.blocks[: num_shared // BLOCK_SIZE] + cached.blocks[num_shared // BLOCK_SIZE :]
    cached.num_computed = num_shared
    far = Driver(other, seed=5)
    moved = far.stream(PROMPT, params=FULL)
    num_moved, num_layers = len(PROMPT) - 1, runner.info.geometry.num_layers
    all_moved = KvRange(0, num_moved, 0, num_layers)
    other.scatter(moved.blocks, all_moved, runner.gather(first.blocks, all_moved))
    moved.num_computed = num_moved
    driver.generate([cached], 4)
    far.generate([moved], 4)
    reference = reference_logprobs(model, cached.tokens[:-1])[len(PROMPT) - 1 :]
    for stream in (cached, moved):
        assert stream.tokens == cached.tokens
        assert (torch.stack([all_logprobs(t) for t in stream.sampled]) - reference).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", ["mistral-window", "mixtral", "qwen3-moe-mixed", "qwen2-moe", "glm4-moe"])
def test_shards_and_stacked_experts_load_like_the_published_layout(tmp_path: Path, name: str) -> None:
    prefix, changes = FAMILIES[name]
    save_tiny(tmp_path / "published", prefix, **changes)
    save_tiny(tmp_path / "stacked", prefix, is_stacked=True, **changes)
    save_tiny(tmp_path / "shards", prefix, max_shard_size="30KB", **changes)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    logprobs = [teacher_forced(load_runner(p), PROMPT, 41) for p in sorted(tmp_path.iterdir())]
    assert all(torch.equal(logprobs[0], other) for other in logprobs[1:])
