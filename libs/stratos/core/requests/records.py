"""Records of a request as engine and workers know it: keys, choices, outputs, identity."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from stratos.common.changed import record
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms

EPOCH_ATTEMPTS = 1000
"""Numbers of attempts that each owner of a stream has: those of a later one are above all of an earlier one, so workers
and the ledger take them for what they are."""


class RequestKey(NamedTuple):
    """A request and its epoch; an old epoch is never answered."""

    request_id: str
    attempt: int


NO_CHOICES: Mapping[int, int] = MappingProxyType({})
"""Of a request that ends as a whole."""


class FinishReason(enum.StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    GRAMMAR = "grammar"
    """The output is complete by its grammar; unlike with STOP its last token is part of the text."""
    EXHAUSTED = "exhausted"
    """The KV pool cannot hold one token more: a partial answer, which goes on elsewhere by a continuation token."""


@record(frozen=True, slots=True, kw_only=True)
class ChoiceState:
    """A choice as earlier attempts left it."""

    index: int
    emitted_ids: tuple[int, ...] = ()
    finished: bool = False


@record(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One generation request: a prompt and the choices to sample for it.

    ``choices`` with ``emitted_ids`` go on: those tokens count as output (penalties, ``min_tokens``,
    ``max_tokens``, RNG positions), their KV is recomputed.
    """

    key: RequestKey
    prompt_ids: tuple[int, ...]
    choices: tuple[ChoiceState, ...]
    sampling: SamplingParams
    seed: int
    terms: RequestTerms = DEFAULT_TERMS
    num_prior_tokens: int = 0
    """Emitted tokens of an earlier answer, over all choices: a request that goes on from one is new all the same."""

    @property
    def num_emitted_tokens(self) -> int:
        """Over all choices, those of an earlier answer too."""
        return sum(len(choice.emitted_ids) for choice in self.choices)

    @property
    def is_resumed(self) -> bool:
        """It emitted tokens itself, here or elsewhere, and has to get back in."""
        return self.num_emitted_tokens > self.num_prior_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillJob:
    """Tokens whose KV a receiver wants; nothing is sampled."""

    leg: str
    """Unique per Fetch stream; the key of the job."""
    token_ids: tuple[int, ...]
    compute: bool = True
    terms: RequestTerms = DEFAULT_TERMS
    receiver: str = ""
    """Incarnation of the worker that wants it."""


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make: 21 of them for a token
class TokenLogprob:
    """Natural log probability of one token under the raw logits; ``rank`` 1 is the most likely. Never changed."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The sampled token and the most likely ones at one position, best first."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class ChoiceOutput:
    """Tokens that one choice gained in one step."""

    key: RequestKey
    index: int
    offset: int
    """Position of the first token among the choice's emitted tokens."""
    token_ids: list[int]
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
