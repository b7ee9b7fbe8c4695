"""Plan of one step, from the scheduler to a runner, and the tokens that come back.

A plan is plain data: no tensors, no references into scheduler state that a later step changes.  What is made for every
row of every step is not ``frozen``, because to make a frozen one takes four times as long; it is changed nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos.core.requests.embedding import PoolingKind
from stratos.core.requests.records import PositionLogprobs, RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.states import StateRow

PREVIOUS_TOKEN = -1
"""Stands in a row for a token that the host does not know yet; see ``PlanRow.continues``."""


@dataclass(slots=True, kw_only=True)
class SampleSpec:
    """How to sample the token that follows the last token of a row."""

    key: RequestKey
    choice: int
    seed: int
    position: int
    """Absolute position of the token to be sampled, prompt included: RNG counter."""
    params: SamplingParams
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    """Tokens emitted so far; filled only when ``params.needs_output_ids``."""
    num_output_tokens: int
    """Tokens emitted so far by this choice, all attempts together: ``min_tokens`` counts with it."""
    num_drafted: int = 0
    """Drafted tokens that position, ``output_ids`` and ``num_output_tokens`` take for emitted, after those that are."""

    @property
    def needs_history(self) -> bool:
        """Sampling looks at the tokens emitted so far, so it cannot be done before all of them are known."""
        return self.params.needs_output_ids


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Prompt tokens whose log probabilities a row reports: each is predicted by the token before it."""

    begin: int
    """Token of the row that predicts ``token_ids[0]``; the next one predicts the next."""
    token_ids: tuple[int, ...]
    num_top: int


@dataclass(slots=True, kw_only=True)
class PlanRow:
    """Consecutive tokens of one sequence that run in this step."""

    seq_id: int
    token_ids: tuple[int, ...]
    """Tokens to run; their KV is written at positions ``start .. start + len(token_ids)``."""
    start: int
    """Absolute position of the first of them; KV of everything before is in the cache."""
    block_table: tuple[int, ...]
    """Entries of the block table from ``table_begin`` on. With those before them, which the runner keeps
    (``kept_tables``), they cover positions ``0 .. start + len(token_ids)``. Where every layer's window is bounded,
    blocks wholly outside of the window of the row's first token may be any valid id, and hold anything finite."""
    table_begin: int = 0
    """Entries that rows of the sequence in earlier plans brought; 0 is the whole table, for any runner."""
    adapter_digest: str = ""
    """Empty for the base model."""
    sample: SampleSpec | None = None
    """Sample after the last token of the row, the drafted ones left out, or not at all."""
    verify: tuple[SampleSpec, ...] = ()
    """The last so many of ``token_ids`` are drafted: sample after each of them, too. For ``Runner.can_verify`` only."""
    pool: PoolingKind | None = None
    """Pool the hidden states of the row for an embedding, or not at all."""
    targets: PromptTargets | None = None
    """Report log probabilities of prompt tokens, or none."""
    state: StateRow | None = None
    """Slots of its recurrent state, for models that have some; without it the row begins with zeros."""
    continues: bool = False
    """``token_ids`` ends with ``PREVIOUS_TOKEN``: the runner puts the token there that the plan launched just before
    this one samples for ``seq_id``. Set with overlap only."""

    @property
    def specs(self) -> tuple[SampleSpec, ...]:
        """Places to sample, in order."""
        return () if self.sample is None else (self.sample, *self.verify)

    @property
    def drafts(self) -> tuple[int, ...]:
        """Tokens that count only if the target samples them itself."""
        return self.token_ids[len(self.token_ids) - len(self.verify) :]


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step: swaps, then copies, then all rows in one forward pass."""

    step: int
    rows: tuple[PlanRow, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """(source, destination) block ids: copy-on-write, done before the forward pass."""
    swap_outs: tuple[tuple[int, int], ...] = ()
    """(block id, host slot): copied before anything of this plan, or of a later one, writes the block."""
    swap_ins: tuple[tuple[int, int], ...] = ()
    """(host slot, block id): copied after ``swap_outs``, and before ``copies`` and rows of this plan read the block."""
    ended: tuple[int, ...] = ()
    """seq_ids whose tables end before this plan, though it may have a row that begins one again."""
    num_drafted: int = 0
    """Drafted tokens of all rows."""
    are_swaps_fenced: bool = False
    """Until the plan is collected nothing touches the blocks that it swaps: the copies may run beside everything."""

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(slots=True)
class SampledToken:
    """A token sampled for a row."""

    seq_id: int
    token_id: int
    logprobs: PositionLogprobs | None = None


@dataclass(frozen=True, slots=True)
class PooledRow:
    """Contribution of one row to an embedding."""

    seq_id: int
    values: bytes
    """float64, little endian [hidden]: the last token's state, or the sum over the row's tokens."""


ALL_BANNED = "every token is banned by the request's parameters"
NO_SUCH_ID = "a token id is not in the vocabulary"
ADAPTER_GONE = "the adapter is not loaded"
"""Errors of a row that are not the engine's: the first two are the request's, the third ends with the next attempt."""
NON_FINITE_HIDDEN = "the model's hidden state is not finite"
NON_FINITE = "the model's logits are not finite"
DAMAGED_PAGE = "KV in host memory was damaged"
DAMAGES = frozenset({NON_FINITE_HIDDEN, NON_FINITE, DAMAGED_PAGE})
"""Errors of a row whose KV may be damaged: computing all of it once more may give a token."""


@dataclass(slots=True)
class StepTokens:
    """Result of one plan; a row with an error has no token."""

    tokens: list[SampledToken] = field(default_factory=list)
    """One per row that samples. A row with drafted tokens has one more for each, as if all of them were accepted, up to
    the first place that cannot be sampled: that is no error, since the row may not get so far."""
    pooled: list[PooledRow] = field(default_factory=list)
    prompt_logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    """seq_id -> one entry per target of its row."""
    errors: dict[int, str] = field(default_factory=dict)
    """seq_id -> why this row could not be sampled (for example non-finite logits)."""
    swap_s: float = 0.0
    """Seconds that the plan's swaps took."""
    damaged_slots: tuple[int, ...] = ()
    """Host slots that the plan loaded, and whose content is not what was copied there."""
