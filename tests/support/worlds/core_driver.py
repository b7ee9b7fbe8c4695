"""Runs requests through the whole engine core over a tiny model, and collects what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos.common.errors import StratosError
from stratos.core.requests.records import ChoiceState, EngineRequest, FinishReason, PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.plan_driver import load_runner


@dataclass
class Outcome:
    """Everything a choice got in this attempt."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    reason: FinishReason | None = None


@dataclass
class Outcomes:
    """By (request id, choice); errors by request id."""

    choices: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    errors: dict[str, StratosError] = field(default_factory=dict)


def make_core(
    path: Path, *, kv_pool_bytes: int = 2 << 20, runner: dict[str, Any] | None = None, **config: Any
) -> EngineCore:
    """An engine core over the model in ``path``; ``runner``: more settings of its runner."""
    return EngineCore(load_runner(path, kv_pool_bytes=kv_pool_bytes, **(runner or {})), scheduler_config(**config))


def make_request(
    prompt: Iterable[int], name: str = "r", *, n: int = 1, seed: int = 7, emitted: Iterable[int] = (), **params: Any
) -> EngineRequest:
    """A request; with ``emitted`` its only choice resumes after those tokens."""
    choices = tuple(ChoiceState(index=i) for i in range(n))
    if emitted:
        choices = (ChoiceState(index=0, emitted_ids=tuple(emitted)),)
    return EngineRequest(
        key=RequestKey(name, 0), prompt_ids=tuple(prompt), choices=choices, sampling=SamplingParams(**params), seed=seed
    )


def run(core: EngineCore, *requests: EngineRequest) -> Outcomes:
    """Add all requests and step to the end; the block ledger is recounted after every step."""
    for request in requests:
        core.add(request)
    outcomes = Outcomes()
    while core.has_work:
        result = core.step()
        core.verify()
        for output in result.outputs:
            outcome = outcomes.choices.setdefault((output.key.request_id, output.index), Outcome())
            outcome.ids += output.token_ids
            outcome.logprobs += output.logprobs
            outcome.reason = output.finish_reason or outcome.reason
        outcomes.errors.update({key.request_id: error for key, error in result.errors.items()})
    return outcomes
