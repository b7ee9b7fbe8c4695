"""Log probabilities of the prompt against transformers, over chunks, cache hits, preemption and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.requests.records import EngineRequest, PositionLogprobs
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.runner import prompt_logprobs as prompt_scores
from stratos.engine.settings import SchedulerConfig
from tests.support.reference.tiny_models import reference_logprobs, save_tiny_llama
from tests.support.worlds.core_driver import make_core, make_request

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    path = tmp_path_factory.mktemp("model")
    return path, reference_logprobs(save_tiny_llama(path), PROMPT)


def scored(core: EngineCore, *requests: EngineRequest) -> dict[str, tuple[PositionLogprobs, ...]]:
    """What comes with the first tokens, by request id; checked to come once."""
    for request in requests:
        core.add(request)
    found: dict[str, tuple[PositionLogprobs, ...]] = {}
    while core.has_work:
        result = core.step()
        core.verify()
        assert result.prompt_logprobs.keys() <= result.started_stats.keys()
        for key, entries in result.prompt_logprobs.items():
            assert key.request_id not in found
            found[key.request_id] = entries
    return found


def wanting(num: int | None, prompt: list[int] = PROMPT, name: str = "r", **fields: Any) -> EngineRequest:
    return make_request(prompt, name, **{"num_prompt_logprobs": num, "max_tokens": 3, "ignore_eos": True, **fields})


def check(entries: tuple[PositionLogprobs, ...], reference: torch.Tensor, num_top: int) -> None:
    assert [entry.sampled.token_id for entry in entries] == PROMPT[1:]
    for place, entry in enumerate(entries):
        row = reference[place]
        assert entry.sampled.logprob == pytest.approx(float(row[PROMPT[place + 1]]), abs=1e-4)
        assert entry.sampled.rank == int((row > row[PROMPT[place + 1]]).sum()) + 1
        best = row.topk(num_top)
        assert [token.token_id for token in entry.top] == best.indices.tolist()
        assert [token.logprob for token in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("budget", [1, 7, 16, 512])
@pytest.mark.parametrize("overlap", [False, True])
def test_values_are_those_of_transformers_whatever_the_chunks(world: Any, budget: int, overlap: bool) -> None:
    path, reference = world
    core = make_core(path, max_num_batched_tokens=budget, overlap=overlap)
    check(scored(core, wanting(5))["r"], reference, 5)


def test_cached_blocks_are_computed_again(world: Any) -> None:
    path, reference = world
    core = make_core(path)
    assert scored(core, wanting(None)) == {}
    assert core.match(tuple(PROMPT), "", b"") == 40
    entries = scored(core, wanting(3, n=2))["r"]
    check(entries, reference, 3)
    assert scored(core, wanting(3)) == {"r": entries}
    first = core.status().step
    scored(core, wanting(None))
    assert core.status().step == first + 3, "without logprobs the cache is used"


def test_neighbours_and_small_slices_change_nothing(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reference = world
    monkeypatch.setattr(prompt_scores, "SLICE", 3)
    core = make_core(path, max_num_batched_tokens=33)
    others = [wanting(i, [(7 * j + i) % 97 for j in range(9 + 7 * i)], f"other-{i}") for i in range(3)]
    found = scored(core, wanting(4), *others, wanting(None, name="silent"))
    check(found["r"], reference, 4)
    lengths = {name: len(entries) for name, entries in found.items()}
    assert lengths == {"r": 40, "other-0": 8, "other-1": 15, "other-2": 22}


def test_a_prompt_of_one_token_has_no_entry(world: Any) -> None:
    assert scored(make_core(world[0]), wanting(2, [5])) == {"r": ()}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("aborts", [False, True])
def test_preemption_and_a_lost_parent_choice_leave_no_gap(overlap: bool, aborts: bool) -> None:
    config = SchedulerConfig(max_num_batched_tokens=2, kv_watermark=1.0, default_output_tokens=1)
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=12, block_size=4, overlap=overlap)), config)
    growing, prompt = wanting(None, [1, 2, 3], "growing", max_tokens=40), [3 * j for j in range(29)]
    scored_request = wanting(0, prompt, "scored", n=2, max_tokens=4)
    engine.add(growing)
    engine.step()
    engine.add(scored_request)
    for _ in range(9):
        engine.step()
    if aborts:
        engine.abort(scored_request.key, (0,))
    found = scored(engine)["scored"]
    assert engine.status().num_preemptions or aborts
    assert [(entry.sampled.token_id, entry.sampled.logprob) for entry in found] == [(3 * j, -j) for j in range(1, 29)]
