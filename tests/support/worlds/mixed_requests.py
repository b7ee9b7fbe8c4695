"""Requests that sample in different ways, over prompts of different lengths: what two runs must agree about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratos.core.requests.records import ChoiceState, EngineRequest, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from tests.support.worlds.terms import make_terms

PROMPT = [(i * 29 + 3) % 97 for i in range(22)]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 0.0, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
    {"temperature": 1.0, "stop_token_ids": tuple(range(0, 97, 7)), "min_tokens": 2},
]


def mixed_requests(
    params: Sequence[dict[str, Any]], max_tokens: int, *, n: int = 1, digests: Sequence[str] = ("",)
) -> list[EngineRequest]:
    """One request for each of ``params``, each of the next adapter in ``digests``; prompts are pieces of ``PROMPT``."""
    return [
        EngineRequest(
            key=RequestKey(f"r{index}", 0),
            prompt_ids=tuple(PROMPT[: 4 + 4 * index]),
            choices=tuple(ChoiceState(index=i) for i in range(n)),
            sampling=SamplingParams(**{"max_tokens": max_tokens, **fields}),
            seed=index,
            terms=make_terms(adapter_digest=digests[index % len(digests)]),
        )
        for index, fields in enumerate(params)
    ]
