"""Drives engines over the fake runner: requests, what comes out of the steps, and the ledgers at rest.

Tokens are checked against ``expected``, which is arithmetic done apart from the engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from stratos.common.errors import StratosError
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.requests.records import ChoiceState, EngineRequest, FinishReason, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.results import StepResult
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import fake_generate
from tests.support.worlds.terms import pop_terms

CROWDED: dict[str, Any] = {"kv_watermark": 1.0, "admission_counts_budgets": False, "default_output_tokens": 1}
"""Settings that admit all that fits now, so that a small pool runs full and sequences are preempted."""
MAX_STEPS = 5000


def make_request(
    prompt: Iterable[int],
    name: str = "r",
    n: int = 1,
    *,
    choices: Sequence[ChoiceState] = (),
    **fields: Any,
) -> EngineRequest:
    """A greedy request of 8 tokens for each choice.

    Args:
        prompt: its tokens.
        name: request id.
        n: choices.
        choices: instead of ``n`` fresh ones.
        fields: of ``RequestTerms`` those in ``TERMS_FIELDS``, the others of ``SamplingParams``.
    """
    terms = pop_terms(fields)
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=tuple(choices) or tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **fields}),
        seed=1,
        terms=terms,
    )


def expected(prompt: Iterable[int], num_tokens: int = 8, weight: int = 1, **model: Any) -> list[int]:
    """Tokens that follow a prompt on one worker; ``model``: fields as of ``fake_generate``."""
    return fake_generate(tuple(prompt), num_tokens, prefill_weight=weight, decode_weight=weight, **model)


class Run:
    """Steps an engine and keeps what comes out of requests that began after it; verifies the ledgers at every step."""

    def __init__(self, engine: EngineCore) -> None:
        self.engine = engine
        self.tokens: dict[tuple[str, int], list[int]] = {}
        """By (request id, choice), as ``reasons``."""
        self.reasons: dict[tuple[str, int], FinishReason] = {}
        self.stats: dict[str, Any] = {}
        """By request id, as ``vectors``."""
        self.vectors: dict[str, list[float]] = {}
        self.errors: dict[str, StratosError] = {}
        """By request id or leg."""
        self.results: list[StepResult] = []
        self.max_allocated = 0
        """Blocks after any step."""

    def step(self) -> StepResult:
        """One step."""
        result = self.engine.step()
        self.engine.verify()
        self.results.append(result)
        self.errors |= {key.request_id: error for key, error in result.errors.items()} | result.prefill_errors
        assert not self.stats.keys() & {key.request_id for key in result.started_stats}, "a request starts once"
        self.stats |= {key.request_id: stats for key, stats in result.started_stats.items()}
        self.vectors |= {output.key.request_id: list(array("f", output.values)) for output in result.embeddings}
        self.max_allocated = max(self.max_allocated, self.engine.status().blocks.allocated)
        for output in result.outputs:
            place = (output.key.request_id, output.index)
            assert place not in self.reasons, "a token after the end"
            tokens = self.tokens.setdefault(place, [])
            assert output.offset == len(tokens)
            tokens += output.token_ids
            if output.finish_reason:
                self.reasons[place] = output.finish_reason
        return result

    def drain(self, limit: int = MAX_STEPS) -> Run:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work:
                return self
            self.step()
        pytest.fail("the engine did not come to rest")


def drain(engine: EngineCore) -> Run:
    """A run to the end."""
    return Run(engine).drain()


def drained_tokens(engine: EngineCore) -> dict[tuple[str, int], list[int]]:
    """Tokens of a run to the end in which nothing may fail."""
    run = drain(engine)
    assert not run.errors
    return run.tokens


def prompt_hashes(engine: EngineCore, prompt: Iterable[int]) -> list[bytes]:
    """Hashes of a prompt's full blocks, its last token excluded; no adapter, no salt."""
    root = chain_root(engine.info.identity, "", b"")
    return block_hashes(root, tuple(prompt)[:-1], engine.info.geometry.block_size)


def assert_at_rest(engine: EngineCore) -> None:
    """No block of either tier is held."""
    status = engine.status()
    blocks, slots = status.blocks, status.host.slots
    assert blocks.free + blocks.cached == blocks.total, blocks
    assert slots.free + slots.cached == slots.total, slots
