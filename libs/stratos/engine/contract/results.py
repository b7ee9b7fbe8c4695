"""Results of an engine: of a step, of a reservation, and its status."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from stratos.common.errors import StratosError
from stratos.core.engine_load import EngineLoad
from stratos.core.kv import DiskLedger, HostLedger
from stratos.core.requests.embedding import EmbeddingOutput
from stratos.core.requests.pins import PinnedSpan
from stratos.core.requests.records import ChoiceOutput, PositionLogprobs, RequestKey


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Recounts since the start."""

    num_sound: int = 0
    num_broken: int = 0
    """A count or an invariant was off: a bug, and the engine should be restarted."""


class CostErrors(NamedTuple):
    """Relative errors of recent predictions, made before the step's own duration was known."""

    median: float
    p90: float


class PrefillEventKind(enum.Enum):
    """Progress of a prefill job in one step."""

    READY = "ready"
    CHUNK = "chunk"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillEvent:
    """KV of tokens [0, num_tokens) of the job is in the pages."""

    kind: PrefillEventKind
    leg: str
    num_tokens: int
    """READY: tokens found in the prefix cache. CHUNK, DONE: tokens whose KV is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Times and counts of a request up to its first token."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_transferred_tokens: int
    num_recomputed_tokens: int
    first_scheduled_s: float | None
    num_pinned_tokens: int = 0
    """First tokens of the prompt whose KV its breakpoints keep here."""
    pinned_spans: tuple[PinnedSpan, ...] = ()
    """Runs of them that nothing kept, or not as long, in the order of the prompt."""


@dataclass(frozen=True, slots=True)
class StateStatus:
    """Slots for recurrent states; all 0 for a model without."""

    num_slots: int = 0
    num_available: int = 0
    """Free ones, and snapshots that nothing holds."""
    num_snapshots: int = 0


@dataclass(slots=True)
class StepShares:
    """Tokens that a step computed, by whose they were; rows of what had ended by then included, rejected drafts not."""

    tenants: dict[str, int] = field(default_factory=dict)
    requests: dict[RequestKey, int] = field(default_factory=dict)
    legs: dict[str, int] = field(default_factory=dict)
    """Prefill jobs."""
    num_tokens: int = 0
    """All of them."""


FAILED = "failed"
"""Method of drafts that a proposer failed to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCount:
    """Drafts of one row, or what became of them before there was one."""

    key: RequestKey
    method: str
    """Who drafted: a proposer, "grammar", or ``FAILED``, where one raised or drafted what is no token."""
    num_drafted: int = 0
    """Tokens that the pass verified."""
    num_accepted: int = 0
    """Tokens of these that the target drew, too, and that counted."""
    num_cut: int = 0
    """Tokens that the grammar forbids, so that no pass had them."""


@dataclass(slots=True)
class StepResult:
    """Everything one step produced."""

    step: int
    num_rows: int = 0
    """Rows of the forward pass that was collected; 0 when none was."""
    began_s: float = 0.0
    """When that pass was launched, or began once the one before had ended; monotonic seconds, 0 when there was none."""
    ended_s: float = 0.0
    """When its tokens were there."""
    idle_ns: int = 0
    """Nanoseconds that the step loop has waited for work since it began, as its own clock says."""
    work_ns: int = 0
    """The same for all else that it did up to the end of this step: passes, planning, commands."""
    is_idle: bool = False
    """Nothing could be launched and nothing was in flight: calling again at once would change nothing."""
    outputs: list[ChoiceOutput] = field(default_factory=list)
    embeddings: list[EmbeddingOutput] = field(default_factory=list)
    prefill_events: list[PrefillEvent] = field(default_factory=list)
    errors: dict[RequestKey, StratosError] = field(default_factory=dict)
    prefill_errors: dict[str, StratosError] = field(default_factory=dict)
    damaged: dict[RequestKey, list[bytes]] = field(default_factory=dict)
    """By request that computes all of its KV again, since what it read may be damaged: the blocks forgotten here."""
    started_stats: dict[RequestKey, RequestStats] = field(default_factory=dict)
    """For requests that got their first token in this step: where the prompt's KV came from is settled then."""
    prompt_logprobs: dict[RequestKey, tuple[PositionLogprobs, ...]] = field(default_factory=dict)
    """For requests that got their first token in this step and asked: one entry per prompt token from the second on."""
    shares: StepShares = field(default_factory=StepShares)
    drafts: list[DraftCount] = field(default_factory=list)
    """Rows with drafts."""
    draft_cost_s: float = 0.0
    """Seconds that drafting took, and verifying by what steps cost."""
    draft_saved_s: float = 0.0
    """Seconds of steps that accepted tokens made needless."""

    @property
    def num_sampled(self) -> int:
        """Tokens of its outputs."""
        return sum([len(output.token_ids) for output in self.outputs])

    @property
    def num_drafted(self) -> int:
        """Drafted tokens that the pass verified."""
        return sum(count.num_drafted for count in self.drafts)

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that the target drew, too, and that counted."""
        return sum(count.num_accepted for count in self.drafts)

    @property
    def has_news(self) -> bool:
        """The step did something."""
        return bool(
            self.outputs
            or self.embeddings
            or self.prefill_events
            or self.errors
            or self.prefill_errors
            or self.damaged
            or self.shares.num_tokens
        )

    @property
    def busy_ns(self) -> int:
        """Nanoseconds of the pass that was collected."""
        return round(max(0.0, self.ended_s - self.began_s) * 1e9)

    def share_ns(self, num_tokens: int) -> int:
        """Nanoseconds of ``num_tokens`` of the step's tokens, rounded down."""
        return self.busy_ns * num_tokens // self.shares.num_tokens if self.shares.num_tokens else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReservation:
    """Blocks taken for a hand-off: reserved, invisible."""

    key: RequestKey
    num_skip_tokens: int
    """Tokens the local prefix cache covers; the source sends [num_skip_tokens, num_tokens)."""
    num_tokens: int
    """Prompt tokens without the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTierStatus:
    """Blocks in host memory by state, and counts since the start."""

    slots: HostLedger = field(default_factory=HostLedger)
    num_swapped_out: int = 0
    """Preempted sequences that went to host memory."""
    num_restored: int = 0
    """Preempted sequences that came back from there."""
    num_blocks_out: int = 0
    num_blocks_in: int = 0
    num_damaged: int = 0
    """Blocks among those that came in whose content had changed in host memory; they were computed again."""
    num_evicted: int = 0
    """Cached blocks that made room for others there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTierStatus:
    """Blocks on disk, and counts since the start (``engine.kv_disk.counts``)."""

    blocks: DiskLedger = field(default_factory=DiskLedger)
    block_bytes: int = 0
    """Size of a file."""
    num_found: int = 0
    """Files of an earlier process."""
    num_noted: int = 0
    """Blocks that host memory got, and disk had not."""
    num_waiting: int = 0
    """Among those: not written yet."""
    num_written: int = 0
    num_hits: int = 0
    """Blocks that a request found on disk."""
    num_loading: int = 0
    """Among those: being read."""
    num_loaded: int = 0
    num_verified: int = 0
    """Blocks whose bytes were read and are those that were written."""
    not_kept: dict[str, int] = field(default_factory=dict)
    """Blocks that were noted and did not go to disk, by reason."""
    not_loaded: dict[str, int] = field(default_factory=dict)
    """Hits that were computed instead, by reason."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Blocks that left the disk, by reason."""

    def check_laws(self) -> None:
        """Raise ``AssertionError`` where a block is counted twice, or not at all."""
        self.blocks.check_law()
        assert self.num_found + self.num_written - sum(self.dropped.values()) == self.blocks.stored, f"{self}"
        assert self.num_noted == self.num_written + sum(self.not_kept.values()) + self.num_waiting, f"{self}"
        assert self.num_hits == self.num_loaded + sum(self.not_loaded.values()) + self.num_loading, f"{self}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPinStatus:
    """Pins of one tier."""

    num_blocks: int = 0
    """Pinned now."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Pins that ended or were not made since the start, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus(EngineLoad):
    """A snapshot that any thread may read: the load that other processes see, and what the worker itself needs."""

    num_prefill_jobs: int
    resident_adapters: tuple[str, ...]
    num_preemptions: int = 0
    num_evicted: int = 0
    """Cached blocks that made room for others in the device's pool."""
    num_admission_refusals: int = 0
    """Waits that met a full pool at the head of the queue, each counted once, and hand-offs that found no room."""
    waiting_by_class: dict[int, int] = field(default_factory=dict)
    """Shares of ``num_waiting`` by the class they came with; classes without any are left out."""
    audits: AuditCounts = field(default_factory=AuditCounts)
    """Recounts of the block ledger."""
    cost_errors: CostErrors | None = None
    """How far off the predicted duration of a step is; ``None`` while nothing is predicted."""
    num_kv_tokens: int = 0
    """Tokens whose KV running sequences and prefill jobs hold; a shared prefix counts for each of them."""
    host: HostTierStatus = field(default_factory=HostTierStatus)
    disk: DiskTierStatus = field(default_factory=DiskTierStatus)
    load_ratios: tuple[float, float] = (1.0, 1.0)
    """Time to load a block over the time to compute it, of host memory and of disk."""
    pins: dict[str, TierPinStatus] = field(default_factory=dict)
    """By tier: "device" and "host"."""
    states: StateStatus = field(default_factory=StateStatus)
    last_cache_change: int = 0
    """Number of the newest change of the prefix cache."""

    @property
    def load(self) -> EngineLoad:
        """The part that other processes see."""
        return EngineLoad(**{entry.name: getattr(self, entry.name) for entry in fields(EngineLoad)})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCheck:
    """Result of reading weights again, once."""

    num_bytes: int
    """Read by this call."""
    num_passes: int
    """Times that all of them were read since the start; the first one takes note of them."""
    damaged: tuple[str, ...] = ()
    """Weights that are no longer what they were, by where they are in the model; none twice."""
