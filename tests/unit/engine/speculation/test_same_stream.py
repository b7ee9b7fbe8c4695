"""Speculation over a model: tokens, log probabilities and ends are those of a run without drafts, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.records import EngineRequest
from stratos.core.requests.watermark import Watermark
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from tests.support.fakes.proposers import proposers
from tests.support.reference.tiny_models import save_adapter, save_tiny_llama
from tests.support.worlds.core_driver import Outcomes, make_request, run
from tests.support.worlds.plan_driver import load_runner

VOCAB = 97
PROMPT = [(i * 29 + 3) % VOCAB for i in range(22)]
ALL_DRAFTS = SchedulerConfig(speculation=SpeculationConfig(is_adaptive=False))
KINDS = ["right", "wrong", "wrong after two", "random"]
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "num_logprobs": 2},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "num_logprobs": 1},
    "penalised": {"temperature": 0.8, "frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
    "stops": {"temperature": 1.0, "stop_token_ids": tuple(range(0, VOCAB, 9)), "min_tokens": 11},
    "biased": {"temperature": 0.7, "logit_bias": {5: 4.0, 9: -3.0}, "min_p": 0.02, "bad_sequences": ((5, 5), (7,))},
    "marked": {"temperature": 0.8, "watermark": Watermark(key=b"k" * 32, delta=2.0, gamma=0.5)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model = save_tiny_llama(path)
    save_adapter(path / "adapter", model, rank=4, targets=["q_proj", "down_proj"], seed=1)
    return path


@pytest.fixture(scope="module")
def runner(folder: Path) -> TorchRunner:
    loaded = load_runner(folder)
    loaded.load_adapter(read_adapter_files(folder / "adapter"))
    return loaded


@pytest.fixture(scope="module")
def requests(folder: Path) -> list[EngineRequest]:
    """All at once, so that rows with and without drafts, parameters and adapters share steps."""
    made = [
        make_request(PROMPT[i:], name, n=1 + i % 2, max_tokens=33, **p) for i, (name, p) in enumerate(PARAMS.items())
    ]
    terms = replace(
        made[0].terms, adapter=replace(made[0].terms.adapter, digest=read_adapter_files(folder / "adapter").digest)
    )
    return [*made, replace(make_request(PROMPT, "adapted", max_tokens=33, temperature=0.6), terms=terms)]


@pytest.fixture(scope="module")
def before(runner: TorchRunner, requests: list[EngineRequest]) -> Outcomes:
    """What comes out without drafts."""
    outcomes = run(EngineCore(runner, SchedulerConfig()), *requests)
    assert not outcomes.errors
    return outcomes


def streams_of(outcomes: Outcomes) -> dict[tuple[str, int], list[int]]:
    return {place: outcome.ids for place, outcome in outcomes.choices.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_the_same_streams(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes, kind: str
) -> None:
    proposer = proposers(streams_of(before), VOCAB)[kind]
    outcomes = run(EngineCore(runner, ALL_DRAFTS, proposer=proposer), *requests)
    assert proposer.num_asked > 0
    assert outcomes == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_alone_gives_the_same_stream(
    runner: TorchRunner, requests: list[EngineRequest], before: Outcomes, kind: str
) -> None:
    for request in requests:
        proposer = proposers(streams_of(before), VOCAB)[kind]
        outcomes = run(EngineCore(runner, ALL_DRAFTS, proposer=proposer), request)
        for place, outcome in outcomes.choices.items():
            assert outcome == before.choices[place], (place, kind)
        assert not outcomes.errors


def test_a_draft_that_makes_the_model_overflow_is_only_rejected(folder: Path) -> None:
    request, runner = make_request(PROMPT, max_tokens=20, temperature=0.0), load_runner(folder)
    ids = run(EngineCore(runner, SchedulerConfig()), request).choices["r", 0].ids
    poison = next(token for token in range(VOCAB) if token not in {*PROMPT, *ids})
    with torch.inference_mode():
        runner.decoder.embedding[poison] = float("nan")
    proposer = proposers({("r", 0): [poison] * 20}, VOCAB)["right"]
    after = run(EngineCore(runner, ALL_DRAFTS, proposer=proposer), request)
    assert not after.errors
    assert after.choices["r", 0].ids == ids
