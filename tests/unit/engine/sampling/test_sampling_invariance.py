"""A seeded request gets the same tokens alone, in any batch, after preemption and after migration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import BadRequest
from stratos.core.requests.records import FinishReason
from stratos.core.requests.watermark import Watermark
from stratos.engine.sampling.logprobs import position_logprobs
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import make_core, make_request, run

PROMPT = [(i * 31 + 7) % 97 for i in range(19)]
NUM_TOKENS = 20
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "filters": {"temperature": 1.4, "min_p": 0.01, "top_k": 40, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    "bad": {"temperature": 0.0, "bad_sequences": ((5,), (17, 30), (1, 2, 3))},
    "allowed": {"allowed_token_ids": tuple(range(10, 30)), "frequency_penalty": 1.0},
    "watermark": {"watermark": Watermark(key=b"k" * 16, num_context_tokens=3)},
    "min-tokens": {"min_tokens": 9, "logit_bias": {0: 6.0}, "stop_token_ids": (11,)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path)
    return path


def params_of(kind: str) -> dict[str, Any]:
    return {"max_tokens": NUM_TOKENS, "ignore_eos": kind != "min-tokens", **KINDS[kind]}


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[str, int], list[int]]:
    """Each kind run by itself, two choices each."""
    core = make_core(folder, prefix_cache=False)
    together: dict[tuple[str, int], list[int]] = {}
    for kind in KINDS:
        outcomes = run(core, make_request(PROMPT, kind, n=2, **params_of(kind)))
        together.update({key: outcome.ids for key, outcome in outcomes.choices.items()})
    return together


def test_all_kinds_in_one_batch_equal_each_alone(folder: Path, expected: dict[Any, list[int]]) -> None:
    core = make_core(folder, max_num_batched_tokens=24)
    outcomes = run(core, *(make_request(PROMPT, kind, n=2, **params_of(kind)) for kind in KINDS))
    assert {key: outcome.ids for key, outcome in outcomes.choices.items()} == expected
    assert len({tuple(ids) for ids in expected.values()}) >= len(KINDS)
    assert expected["plain", 0] != expected["plain", 1]
    assert expected["greedy", 0] == expected["greedy", 1]


def test_preemption_changes_no_token(folder: Path, expected: dict[Any, list[int]]) -> None:
    pool_bytes = 24 * 4 * 2 * 2 * 2 * 10 * 4  # 24 blocks, which the prompts fill; admission must not foresee the output
    core = make_core(folder, kv_pool_bytes=pool_bytes, kv_watermark=1.0, admission_counts_budgets=False)
    outcomes = run(core, *(make_request(PROMPT, kind, n=2, **params_of(kind)) for kind in KINDS))
    assert core.status().num_preemptions > 3
    assert {key: outcome.ids for key, outcome in outcomes.choices.items()} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_migrated_request_goes_on_at_its_token(folder: Path, expected: dict[Any, list[int]], kind: str) -> None:
    whole = expected[kind, 0]
    core = make_core(folder)
    for cut in (1, 8, len(whole) - 1):
        outcomes = run(core, make_request(PROMPT, "r", emitted=whole[:cut], **params_of(kind)))
        assert outcomes.choices["r", 0].ids == whole[cut:], cut


def test_top_k_1_and_a_tiny_temperature_equal_greedy(folder: Path, expected: dict[Any, list[int]]) -> None:
    for params in ({"top_k": 1, "temperature": 1.7}, {"temperature": 1e-6}):
        outcomes = run(make_core(folder), make_request(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, **params))
        assert outcomes.choices["r", 0].ids == expected["greedy", 0]


def test_bad_sequences_are_not_completed_and_nothing_else_changes(folder: Path, expected: dict[Any, list[int]]) -> None:
    free = expected["greedy", 0]
    first, second = free[3], free[4]
    core = make_core(folder)
    bad = run(core, make_request(PROMPT, max_tokens=5, temperature=0.0, bad_sequences=((first, second),)))
    assert bad.choices["r", 0].ids[:4] == free[:4]
    assert bad.choices["r", 0].ids[4] != second
    absent = next(token for token in range(97) if token not in free[:4])
    same = run(core, make_request(PROMPT, max_tokens=5, temperature=0.0, bad_sequences=((absent, second),)))
    assert same.choices["r", 0].ids == free[:5]


def test_only_allowed_tokens_come_out_end_tokens_included(folder: Path) -> None:
    core = make_core(folder)
    ids = run(core, make_request(PROMPT, max_tokens=40, allowed_token_ids=(8, 9, 0))).choices["r", 0]
    assert set(ids.ids) <= {8, 9, 0}
    assert (ids.reason, ids.ids[-1]) == (FinishReason.STOP, 0)


def test_a_request_that_bans_everything_is_its_own_fault(folder: Path) -> None:
    blocked = make_request(PROMPT, "blocked", allowed_token_ids=(5,), bad_sequences=((5,),))
    outcomes = run(make_core(folder), blocked, make_request(PROMPT, "other", max_tokens=3, ignore_eos=True))
    assert isinstance(outcomes.errors["blocked"], BadRequest)
    assert len(outcomes.choices["other", 0].ids) == 3


def test_log_probabilities_of_a_large_vocabulary_do_not_depend_on_batch_or_threads() -> None:
    """Torch cuts a row that is long enough among its threads, and then adds it in another order."""
    torch.manual_seed(0)
    logits, before = torch.randn(33, 151_936) * 3, torch.get_num_threads()
    tokens = logits.argmax(1)
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(position_logprobs(logits, tokens, [20] * 33))
            alone = [position_logprobs(logits[i : i + 1], tokens[i : i + 1], [20])[0] for i in range(33)]
            assert alone == results[-1]
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]
    expected = torch.log_softmax(logits.double(), 1).max(1).values.tolist()
    assert [entry.sampled.logprob for entry in results[0]] == pytest.approx(expected, abs=1e-5)
