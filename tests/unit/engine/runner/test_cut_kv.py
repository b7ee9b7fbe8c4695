"""K or V that is not finite ends its request, and nothing of it is found later; the neighbours keep their tokens.

The first layer's V of one token overflows. Pages hold 0 in its place, so every hidden state would be finite, and wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import Internal
from stratos.core.requests.records import EngineRequest, PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from tests.support.reference.overflowing_models import OVERFLOWING, SIZES, save_overflowing
from tests.support.worlds.core_driver import Outcomes, make_core, make_request, run

PROMPT = [(i * 37 + 11) % 89 for i in range(23)]
LATE, EARLY = [*PROMPT[:6], OVERFLOWING, *PROMPT], [OVERFLOWING, *PROMPT]
CHUNK = 8
RUNNERS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "kv_dtype": "int8"},
    {"dtype": "bfloat16", "kv_dtype": "fp8"},
    {"dtype": "float32", "native_kernels": False},
    {"dtype": "float32", "native_kernels": False, "exact": False},
    {"dtype": "float16", "whole_step": False},
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By type."""
    return {dtype: save_overflowing(tmp_path_factory.mktemp(dtype), dtype) for dtype in SIZES}


@pytest.fixture(params=RUNNERS, ids=lambda runner: "-".join(map(str, runner.values())))
def make(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Callable[[], EngineCore]:
    path = paths[request.param["dtype"]]
    return lambda: make_core(path, runner=request.param, max_num_batched_tokens=CHUNK)


def greedy(prompt: list[int], name: str, **params: Any) -> EngineRequest:
    return make_request(prompt, name, temperature=0.0, max_tokens=9, ignore_eos=True, **params)


def healthy() -> list[EngineRequest]:
    return [greedy(PROMPT[:5], "short"), greedy(PROMPT[2:], "long")]


def culprits() -> list[EngineRequest]:
    """One that meets the token in an earlier chunk than it samples from, one in its first, and one that samples it."""
    return [greedy(LATE, "late"), greedy(EARLY, "early"), greedy(PROMPT, "drawn", logit_bias={OVERFLOWING: 100.0})]


def tokens(outcomes: Outcomes) -> dict[str, list[int]]:
    return {name: outcome.ids for (name, _), outcome in outcomes.choices.items()}


def test_the_request_ends_and_its_neighbours_keep_their_tokens(make: Callable[[], EngineCore]) -> None:
    expected = tokens(run(make(), *healthy()))
    mixed = run(make(), *culprits(), *healthy())
    assert {name: type(error) for name, error in mixed.errors.items()} == dict.fromkeys(
        ("late", "early", "drawn"), Internal
    )
    got = tokens(mixed)
    assert {name: got[name] for name in expected} == expected
    assert set(got) == {*expected, "drawn"}
    assert got["drawn"] == [OVERFLOWING], "what was drawn before it was computed"


def test_no_page_of_it_is_found_again_or_handed_off(make: Callable[[], EngineCore]) -> None:
    core = make()
    run(core, *culprits())
    assert not core.inspect().cached_blocks
    core.add_prefill(PrefillJob(leg="leg", token_ids=(*PROMPT[:CHUNK], *LATE)))
    results = [core.step()]
    core.grant("leg")
    while core.has_work:
        results.append(core.step())
    events = [(event.kind, event.num_tokens) for result in results for event in result.prefill_events]
    assert events == [(PrefillEventKind.READY, 0), (PrefillEventKind.CHUNK, CHUNK)], "what came before it"
    errors = [error for result in results for error in result.prefill_errors.values()]
    assert list(map(type, errors)) == [Internal]
    assert not core.inspect().cached_blocks
