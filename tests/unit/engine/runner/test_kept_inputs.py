"""Inputs that are kept from step to step equal those laid out freshly, and give the same tokens: after any history."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stratos.common.clock import FakeClock
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PlanRow, SampleSpec, StepPlan
from stratos.engine.core import EngineCore
from stratos.engine.runner.step_inputs import StepInputs, build_step_inputs
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SpeculationConfig
from tests.support.fakes.proposers import GuessingProposer
from tests.support.reference.tiny_models import save_adapter, save_tiny
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import load_runner

VOCAB = 97
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("Llama", {}),
    "window": ("Mistral", {"sliding_window": 9, "tie_word_embeddings": False}),
    "groups": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
}
CASES = [
    ("full", {}),
    ("full", {"overlap": True}),
    ("full", {"adapters": True}),
    ("full", {"drafts": True}),
    ("full", {"whole_step": False, "adapters": True}),
    ("full", {"attention_window": 12, "attention_sinks": 4}),
    ("window", {}),
    ("window", {"overlap": True}),
    ("groups", {}),
]


class Checked:
    """Compares the inputs of every step of a runner with fresh ones of the same plan."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner, self._keep, self.num_kept, self.num_grown = runner, runner.inputs.of, 0, 0
        runner.inputs.of = self.of  # type: ignore[method-assign]

    def of(self, plan: StepPlan, previous: Mapping[int, int]) -> StepInputs:
        runner, inputs = self._runner, self._keep(plan, previous)
        sizes = runner.info.vocab_size, runner.info.max_model_len
        cpu = torch.device("cpu")
        fresh = build_step_inputs(plan, *sizes, runner.adapters.touch, cpu, runner.block_tables, previous)
        assert inputs.token_ids.tolist() == fresh.token_ids.tolist()
        assert inputs.positions.tolist() == fresh.positions.tolist()
        assert inputs.sampled_rows == fresh.sampled_rows
        assert (inputs.errors, inputs.has_drafts) == (fresh.errors, fresh.has_drafts)
        for one, other in zip(inputs.spans, fresh.spans, strict=True):
            assert (one.begin, one.num_tokens, one.start) == (other.begin, other.num_tokens, other.start)
            assert np.array_equal(one.block_table, other.block_table)
        assert _places(inputs.sampled_tokens) == _places(fresh.sampled_tokens)
        assert _groups(inputs) == _groups(fresh)
        self.num_kept += inputs.num_moves > 0
        self.num_grown += inputs.num_moves > 0 and bool(inputs.grown)
        return inputs


def _places(tokens: Any) -> Any:
    return tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens


def _groups(inputs: StepInputs) -> list[Any]:
    return [] if inputs.lora is None else [(id(group.weights), _places(group.tokens)) for group in inputs.lora.groups]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of each kind, and three adapters of the first."""
    root = tmp_path_factory.mktemp("models")
    for name, (family, changes) in MODELS.items():
        model = save_tiny(root / name, family, **changes)
        for index in range(3) if name == "full" else ():
            save_adapter(root / f"adapter{index}", model, rank=2, targets=["q_proj", "down_proj"], seed=index)
    return root


def history(folder: Path, name: str, seed: int, *, is_kept: bool, streams: Any = None, **options: Any) -> Any:
    """Tokens and log probabilities of a random history, and the check of its inputs."""
    draw, overlap = random.Random(f"{name} {seed}"), options.pop("overlap", None)
    digests, has_adapters, settings = [""], options.pop("adapters", False), dict(options)
    settings |= {"kv_pool_bytes": draw.choice((1 << 15, 1 << 18)), "max_model_len": 96, "max_resident_adapters": 2}
    runner = load_runner(folder / name, kept_inputs=is_kept, **settings)
    files = [read_adapter_files(folder / f"adapter{index}") for index in range(3 if has_adapters else 0)]
    for one in files[:2]:
        runner.load_adapter(one)
        digests.append(one.digest)
    checked = Checked(runner)
    config = scheduler_config(max_num_seqs=5, max_num_batched_tokens=16, overlap=overlap, **CROWDED)
    proposer = None if streams is None else GuessingProposer(streams, VOCAB)
    config = replace(config, speculation=SpeculationConfig(is_adaptive=False))  # drafts do not follow the time of steps
    engine = EngineCore(runner, config, FakeClock(), proposer)
    run, asked = Run(engine), {}
    for step in range(90):
        if step < 60 and draw.random() < 0.15:
            prompt = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 20))]
            params: dict[str, Any] = draw.choice(({}, {}, {"temperature": 1.0}, {"num_logprobs": 2}))
            asked[f"r{step}"] = request = make_request(
                prompt, f"r{step}", draw.randint(1, 2), max_tokens=draw.randint(1, 40), ignore_eos=True,
                adapter_digest=draw.choice(digests), **params,
            )  # fmt: skip
            engine.add(request)
        if asked and draw.random() < 0.04:
            engine.abort(asked.pop(draw.choice(sorted(asked))).key)
        if files and step == 40:
            engine.load_adapter(files[2])  # pushes one out, whose rows end
        run.step()
    run.drain()
    assert_at_rest(engine)
    logprobs = [output.logprobs for result in run.results for output in result.outputs]
    return run, logprobs, checked


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_they_equal_fresh_ones_and_give_the_same_tokens(folder: Path, case: Any, seed: int) -> None:
    name, options = case
    options, streams = dict(options), None
    if options.pop("drafts", False):
        first, _, _ = history(folder, name, seed, is_kept=False)
        streams = defaultdict(list, first.tokens)
    kept, kept_logprobs, checked = history(folder, name, seed, is_kept=True, streams=streams, **options)
    laid, logprobs, never = history(folder, name, seed, is_kept=False, streams=streams, **options)
    assert kept.tokens == laid.tokens
    assert (kept.reasons, kept_logprobs) == (laid.reasons, logprobs)
    assert kept.errors.keys() == laid.errors.keys()
    assert never.num_kept == 0
    assert checked.num_kept > 20 or streams
    assert checked.num_grown > 0 or streams


def test_on_another_device_they_are_laid_out_there_for_every_step(folder: Path) -> None:
    runner = load_runner(folder / "full")
    pages: Any = SimpleNamespace(tensor=torch.empty(0, device="meta"))
    elsewhere = TorchRunner(runner.info, runner.decoder, runner.attention, pages, runner.host, runner.adapters)
    for start in range(2):
        spec = SampleSpec(
            key=RequestKey("r", 0), choice=0, seed=0, position=start, params=SamplingParams(), prompt_ids=(),
            output_ids=(), num_output_tokens=start,
        )  # fmt: skip
        row = PlanRow(seq_id=0, token_ids=(5,), start=start, block_table=(0,), sample=spec)
        plan = StepPlan(step=start, rows=(row,))
        elsewhere.block_tables.apply(plan)
        inputs = elsewhere.inputs.of(plan, {})
        assert (inputs.token_ids.device.type, inputs.positions.device.type) == ("meta", "meta")
        assert not inputs.num_moves
