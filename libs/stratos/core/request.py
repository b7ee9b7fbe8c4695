"""Records of a request as engine and workers know it: keys, choices, outputs, identity."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from stratos.core.sampling_params import SamplingParams


class RequestKey(NamedTuple):
    """A request and its epoch; an old epoch is never answered."""

    request_id: str
    attempt: int


class FinishReason(enum.StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    GRAMMAR = "grammar"
    """The output is complete by its grammar; unlike with STOP its last token is part of the text."""
    EXHAUSTED = "exhausted"
    """The KV pool cannot hold one token more: a partial answer, which ``ContinuationState`` can take further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceState:
    """A choice as earlier attempts left it."""

    index: int
    emitted_ids: tuple[int, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One generation request: a prompt and the choices to sample for it.

    ``choices`` with ``emitted_ids`` resume: those tokens count as output (penalties, ``min_tokens``,
    ``max_tokens``, RNG positions), their KV is recomputed.
    """

    key: RequestKey
    prompt_ids: tuple[int, ...]
    choices: tuple[ChoiceState, ...]
    sampling: SamplingParams
    seed: int
    adapter_digest: str = ""
    cache_salt: bytes = b""
    tenant: str = ""
    priority_class: int = 0
    arrival_s: float = 0.0
    """Monotonic seconds of this process."""
    deadline_s: float | None = None
    """Monotonic seconds of this process; ``None`` means no deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillJob:
    """Tokens whose KV a receiver wants; nothing is sampled."""

    leg: str
    """Unique per Fetch stream; the key of the job."""
    token_ids: tuple[int, ...]
    adapter_digest: str = ""
    cache_salt: bytes = b""
    compute: bool = True
    tenant: str = ""
    priority_class: int = 0
    arrival_s: float = 0.0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probability of one token under the raw logits; ``rank`` 1 is the most likely."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIdentity:
    """What must be equal before KV may move between two workers, or be shared at all."""

    model_digest: str
    adapter_digest: str = ""
    kv_dtype: str
    rope_variant: str
    numerics_id: str
    protocol_version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """Shape of the KV cache; may differ between workers, the sender converts."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    element_bytes: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV over all layers and heads."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True, slots=True)
class BlockLedger:
    """Counts of KV blocks; the law is ``free + cached + allocated + reserved + fenced == total``."""

    total: int
    free: int
    cached: int
    allocated: int
    reserved: int
    fenced: int

    def check(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        counted = self.free + self.cached + self.allocated + self.reserved + self.fenced
        assert counted == self.total, f"block ledger law broken: {self}"


@dataclass(frozen=True, slots=True)
class HostLedger:
    """Counts of blocks in host memory; the law is ``free + cached + held + moving == total``."""

    total: int = 0
    free: int = 0
    cached: int = 0
    held: int = 0
    moving: int = 0

    def check(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        assert min(self.total, self.free, self.cached, self.held, self.moving) >= 0, f"negative host count: {self}"
        assert self.free + self.cached + self.held + self.moving == self.total, f"host ledger law broken: {self}"


@dataclass(frozen=True, slots=True)
class StagingLedger:
    """Counts of staging slots; the law is ``free + granted + quarantined == total``."""

    total: int = 0
    free: int = 0
    granted: int = 0
    quarantined: int = 0

    def check(self) -> None:
        """Raise ``AssertionError`` if the law is broken."""
        assert min(self.total, self.free, self.granted, self.quarantined) >= 0, f"negative staging count: {self}"
        assert self.free + self.granted + self.quarantined == self.total, f"staging ledger law broken: {self}"

    def __add__(self, other: StagingLedger) -> StagingLedger:
        return StagingLedger(
            self.total + other.total,
            self.free + other.free,
            self.granted + other.granted,
            self.quarantined + other.quarantined,
        )
