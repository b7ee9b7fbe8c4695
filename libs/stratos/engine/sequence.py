"""Scheduler-side state: sequences (one choice or one prefill job) and the requests they belong to."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stratos.core.block_hash import block_hashes
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.pins import PinnedSpan
from stratos.core.requests.records import ChoiceState, EngineRequest, PositionLogprobs, PrefillJob, RequestKey
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms
from stratos.engine.contract.results import RequestStats
from stratos.engine.contract.states import HeldStates
from stratos.engine.grammar.matcher import GrammarMatcher

Queue = Literal["waiting", "ready", "running", "parked"]
"""Queue of the scheduler that a sequence is in."""
RELEASED = -1
"""Entry of a block table for a block that was given up."""


@dataclass(slots=True)
class Wait:
    """Time of a sequence in the waiting queue, all waits together: only that lets it age."""

    past_s: float = 0.0
    """Seconds of waits that have ended."""
    since_s: float | None = None
    """When the wait under way began; ``None`` while it does not wait."""
    is_refused: bool = False
    """It found no room in the wait under way; a refusal is counted once."""

    def seconds(self, now: float) -> float:
        return self.past_s + (0.0 if self.since_s is None else now - self.since_s)

    def begin(self, now: float) -> None:
        self.since_s = now

    def end(self, now: float) -> None:
        self.past_s, self.since_s, self.is_refused = self.seconds(now), None, False


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens that share one block table; ``num_computed`` catches up with ``len(tokens)``.

    With overlap a step of the sequence may be launched and not collected: its tokens are *in flight*, and the token
    that it samples exists but is *unknown*.  Scheduling goes by ``num_scheduled`` and ``remaining``; what reads
    KV or offers blocks to the prefix cache goes by ``num_computed``, which counts collected steps only.
    """

    seq_id: int
    tokens: list[int]
    root: bytes
    """Root of its block-hash chain."""
    terms: RequestTerms = DEFAULT_TERMS
    output_blocks: int = 0
    """Blocks of output expected when it arrived, for choices that will fork from it, too; 0: nothing is generated."""
    budget_blocks: int = 0
    """Blocks it was admitted for: its table then, and the output expected of it."""
    wait: Wait = field(default_factory=Wait)
    unaged_key: tuple[int, bool, float, float, int] | None = None
    """Place in the order of service in its own class, once it was asked for."""
    num_passed_steps: int = 0
    """Steps in a row in which it was in the batch and other prompts got all tokens."""
    num_computed: int = 0
    """Tokens whose KV is complete."""
    num_in_flight: int = 0
    """Tokens after them that a launched step computes."""
    num_unknown: int = 0
    """Tokens after ``tokens`` that a launched step samples: 0 or 1."""
    max_len: int = sys.maxsize
    """Tokens at which the sequence ends for its length; the last of them is never computed."""
    last_plan: int = -1
    """Number of the last plan that touches the sequence's blocks."""
    epoch: int = 0
    """Counts how often the blocks were given up: results of launched rows of an older epoch move nothing.

    A row is launched in epoch 0; the sequence is preempted, which makes it epoch 1 and resets its counters, and gets
    blocks again. When the row is collected its 0 is not 1: its token is dropped, ``num_in_flight`` is left alone."""
    is_open: bool = True
    """Neither finished nor aborted."""
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    """Hashes of the full blocks of ``tokens``, as far as they were needed."""
    num_hashed: int = 0
    """Blocks of the table that were offered to the prefix cache."""
    num_released: int = 0
    """Entries of the table that are ``RELEASED``: no token sees those blocks again."""
    num_passed: int = 0
    """Blocks of the table, from its first one on, whose window part it does not need any more."""
    num_spared: int = 0
    """Whole blocks that these parts are."""
    num_planned_blocks: int = 0
    """Entries of the table that plans have carried: the runner keeps them."""
    swapped: SwappedState | None = None
    """Its KV in host memory, while it waits without blocks."""
    awaits_copy: bool = False
    """A block of the table is the destination of a copy-on-write that no plan has taken yet."""
    request: RequestState | None = None
    choice: int = 0
    job: JobState | None = None
    grammar: GrammarMatcher | None = None
    """Its state after the last token of ``tokens``."""
    embedding: EmbedState | None = None
    states: HeldStates | None = None
    """Slots of its recurrent state, where the model has one and the sequence holds blocks."""
    drafts: tuple[int, ...] = ()
    """Tokens proposed for the step that is planned; they count only if the target draws them, too."""
    draft_grammars: tuple[GrammarMatcher, ...] = ()
    """State of its grammar after each of them."""
    num_draft_blocks: int = 0
    """Blocks at the end of the table that were taken for them."""
    drafting: DraftState | None = None
    """State of its drafts, once a proposer was asked."""
    computes_all: bool = False
    """Every token is computed here, because more than the KV of each is needed."""

    @property
    def num_scheduled(self) -> int:
        """Tokens whose KV is complete when every launched step is."""
        return self.num_computed + self.num_in_flight

    @property
    def bypasses_prefix_cache(self) -> bool:
        """KV of others is of no use."""
        return self.computes_all or (self.request is not None and self.request.num_unscored_tokens > 0)

    @property
    def has_run(self) -> bool:
        """Its request gave tokens already, here or elsewhere."""
        state = self.request
        return state is not None and (state.has_started or state.request.is_resumed)

    @property
    def remaining(self) -> int:
        """Tokens that no launched step computes; 1 means a decode row."""
        num_tokens = len(self.tokens) + self.num_unknown
        if self.num_unknown and num_tokens >= self.max_len:
            return 0  # the token in flight is the last one, for any token
        return num_tokens - self.num_scheduled

    @property
    def num_output(self) -> int:
        """Tokens the choice has emitted, earlier attempts included."""
        assert self.request is not None
        return len(self.tokens) - len(self.request.request.prompt_ids)

    @property
    def num_unused_budget_blocks(self) -> int:
        """Blocks of the budget that it does not hold yet."""
        return max(0, self.budget_blocks - self.num_held)

    @property
    def num_held(self) -> int:
        """Whole blocks of the table that it holds."""
        return len(self.block_table) - self.num_released - self.num_spared

    @property
    def held_blocks(self) -> list[int]:
        """Blocks that it holds, from the first position on."""
        return [block for block in self.block_table if block != RELEASED] if self.num_released else self.block_table

    def hash_chain(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Hashes of the first ``num_blocks`` full blocks."""
        known = self.block_hashes
        if len(known) < num_blocks:
            missing = self.tokens[len(known) * block_size : num_blocks * block_size]
            known += block_hashes(known[-1] if known else self.root, missing, block_size)
        return known[:num_blocks]


@dataclass(slots=True, eq=False)
class DraftState:
    """Drafts of one sequence: what its proposer remembers, and how it did."""

    memory: Any = None
    """The proposer's own."""
    proposed: tuple[int, ...] = ()
    """The newest drafts, run or not."""
    method: str = ""
    """Who drafted them."""
    num_known: int = 0
    """Tokens that the sequence had then."""
    chances: dict[str, float] = field(default_factory=dict)
    """Learned chance, by who drafts, that the next drafted token is right."""
    gap: int = 0
    """Tokens that the last pause took."""
    next_look: int = 0
    """Tokens of the sequence from which on it is looked at again."""
    promised_s: float = 0.0
    """Time that drafts would have saved so far, while the proposer owes work before it can draft any."""
    is_off: bool = False
    """The proposer failed on the sequence: it goes on without drafts."""


@dataclass(slots=True, eq=False)
class RequestState:
    """A generation request: its live sequences and what happened to it."""

    request: EngineRequest
    root: bytes
    sequences: dict[int, Sequence] = field(default_factory=dict)
    """Live choices by index."""
    matchers: dict[int, GrammarMatcher] = field(default_factory=dict)
    """By choice, if the request has a grammar."""
    pending_forks: list[ChoiceState] = field(default_factory=list)
    """Choices that fork from the first one when the prompt's KV is there."""
    parent_choice: int = -1
    """Index of the choice that computes the prompt for all."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at the first admission."""
    num_transferred_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_pinned_tokens: int = 0
    pinned_spans: tuple[PinnedSpan, ...] = ()
    """Counts as ``RequestStats`` has them."""
    first_scheduled_s: float | None = None
    has_started: bool = False
    """Some choice got a token."""
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    """Log probabilities of the prompt's tokens from the second on, as far as they are computed."""
    needs_output_ids: bool = field(init=False)
    wants_prompt_logprobs: bool = field(init=False)
    """Facts of its parameters that every step asks for."""

    def __post_init__(self) -> None:
        self.needs_output_ids = self.request.sampling.needs_output_ids
        self.wants_prompt_logprobs = self.request.sampling.num_prompt_logprobs is not None

    @property
    def num_unscored_tokens(self) -> int:
        """Prompt tokens whose log probabilities are wanted and not known yet."""
        if not self.wants_prompt_logprobs:
            return 0
        return len(self.request.prompt_ids) - 1 - len(self.prompt_logprobs)

    @property
    def key(self) -> RequestKey:
        return self.request.key

    @property
    def num_open_choices(self) -> int:
        """Choices that will still produce tokens."""
        return len(self.sequences) + len(self.pending_forks)

    def stats(self) -> RequestStats:
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_ids),
            num_cached_tokens=self.num_cached_tokens or 0,
            num_transferred_tokens=self.num_transferred_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_pinned_tokens=self.num_pinned_tokens,
            pinned_spans=self.pinned_spans,
            first_scheduled_s=self.first_scheduled_s,
        )


@dataclass(frozen=True, slots=True)
class SwappedState:
    """Slots of a preempted sequence in host memory, and how far it was."""

    slots: tuple[int, ...]
    """One held slot per block that was held."""
    places: tuple[int, ...]
    """Their places in the block table, ascending; what is missing was released before."""
    num_tokens: int
    num_hashed: int


@dataclass(slots=True, eq=False)
class JobState:
    """A prefill job and its phase: queued, ready (blocks taken, waits for its grant), running, done.

    One whose grant is late is parked: it gave its blocks back, and is queued in its old place when the grant comes.
    """

    job: PrefillJob
    sequence: Sequence
    num_available: int = 0
    """Tokens whose KV may be gathered."""
    is_ready: bool = False
    is_parked: bool = False
    is_granted: bool = False


@dataclass(slots=True, eq=False)
class ReservedState:
    """A hand-off that is not committed: referenced prefix plus reserved blocks."""

    request: EngineRequest
    block_hashes: list[bytes]
    """Hashes of the prompt's full blocks, its last token excluded."""
    prefix_blocks: list[int]
    reserved_blocks: list[int]
    num_skip_tokens: int
    num_tokens: int
    num_batch_slots: int
    num_output_blocks: int = 0
    states: HeldStates | None = None
    """Slots of its recurrent state, where the model has one."""
    is_damaged: bool = False
    """A block of the prefix came damaged from host memory."""

    @property
    def block_table(self) -> list[int]:
        """All blocks, from position 0."""
        return self.prefix_blocks + self.reserved_blocks


@dataclass(slots=True, eq=False)
class EmbedState:
    """One open embedding request."""

    request: EmbedRequest
    total: np.ndarray | None = None
    """float64 [hidden]: parts collected so far."""
    num_cached_tokens: int | None = None
    """Tokens found in the prefix cache at the first admission."""

    def pooling(self, *, is_last_chunk: bool) -> PoolingKind | None:
        """Pooling of a row; ``None`` when it contributes nothing."""
        kind = self.request.pooling
        return kind if is_last_chunk or kind is PoolingKind.MEAN else None
