"""The engine contract: a synchronous core without I/O, driven by whoever owns its thread.

Life of a request on a decode worker
    local prompt:  ``add`` -> steps compute the prompt in chunks -> sampled tokens in ``StepResult.outputs``
    hand-off:      ``match`` -> (source says Ready) -> ``reserve`` -> ``scatter`` ... -> ``commit`` -> outputs
Life of a prefill job on a source
    ``add_prefill`` -> event ``READY`` (its blocks are taken, nothing runs yet) -> ``grant`` -> events ``CHUNK``
    -> event ``DONE`` -> ``gather`` as often as needed, from any thread -> ``release_prefill``
Life of an input to embed
    ``add_embedding`` -> steps compute it in chunks -> its vector in ``StepResult.embeddings``

Every request ends in exactly one of: an output with a finish reason for each choice, its embedding, an entry in
``StepResult.errors``, or a call of ``abort``.  Ids of ended requests may be used again with a new attempt.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from stratos.common.errors import StratosError
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.kv import BlockLedger, HostLedger
from stratos.core.requests.embedding import EmbeddingOutput, EmbedRequest
from stratos.core.requests.grammar import GrammarSpec
from stratos.core.requests.records import ChoiceOutput, EngineRequest, PositionLogprobs, PrefillJob, RequestKey
from stratos.engine.contract.runner import RunnerInfo


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Recounts since the start."""

    num_sound: int = 0
    num_broken: int = 0
    """A count or an invariant was off: a bug, and the engine should be restarted."""


class CostErrors(NamedTuple):
    """Relative errors of the predictions of late, made before the step's own duration was known."""

    median: float
    p90: float


class PrefillEventKind(enum.Enum):
    """What happened to a prefill job."""

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
    """What the engine did for a request up to its first token."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_transferred_tokens: int
    num_recomputed_tokens: int
    first_scheduled_s: float | None


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
    is_idle: bool = False
    """Nothing could be launched and nothing was in flight: calling again at once would change nothing."""
    outputs: list[ChoiceOutput] = field(default_factory=list)
    embeddings: list[EmbeddingOutput] = field(default_factory=list)
    prefill_events: list[PrefillEvent] = field(default_factory=list)
    errors: dict[RequestKey, StratosError] = field(default_factory=dict)
    prefill_errors: dict[str, StratosError] = field(default_factory=dict)
    started_stats: dict[RequestKey, RequestStats] = field(default_factory=dict)
    """For requests that got their first token in this step: where the prompt's KV came from is settled then."""
    prompt_logprobs: dict[RequestKey, tuple[PositionLogprobs, ...]] = field(default_factory=dict)
    """For requests that got their first token in this step and asked: one entry per prompt token from the second on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
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
    """Of them, those that came back."""
    num_blocks_out: int = 0
    num_blocks_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A snapshot that any thread may read."""

    step: int
    is_computing: bool
    blocks: BlockLedger
    num_waiting: int
    num_running: int
    num_queued_tokens: int
    num_prefill_jobs: int
    resident_adapters: tuple[str, ...]
    tokens_by_tenant: dict[str, int]
    slow_step_s: float = 0.0
    """Slowest step of late: what a big model or a busy machine may take, so that slow is not taken for stuck."""
    num_preemptions: int = 0
    num_admission_refusals: int = 0
    """Waits that met a full pool at the head of the queue, each counted once, and hand-offs that found no room."""
    waiting_by_class: dict[int, int] = field(default_factory=dict)
    """Of ``num_waiting``, by the class they came with; classes without any are left out."""
    audits: AuditCounts = field(default_factory=AuditCounts)
    """Recounts of the block ledger."""
    cost_errors: CostErrors | None = None
    """How far off the predicted duration of a step is; ``None`` while nothing is predicted."""
    num_kv_tokens: int = 0
    """Tokens whose KV running sequences and prefill jobs hold; a shared prefix counts for each of them."""
    host: HostTierStatus = field(default_factory=HostTierStatus)


class Engine(ABC):
    """One model, one KV pool, one thread.

    Only ``gather``, ``scatter``, ``status`` and ``prepare_grammar`` may be called from elsewhere.
    """

    info: RunnerInfo

    @abstractmethod
    def add(self, request: EngineRequest) -> None:
        """Queue a request whose prompt is computed here.

        Raises:
            Overloaded: the waiting queue is full.
            ContextLengthExceeded: it could never fit into the pool or the model's context.
            BadRequest: the model has no output layer, so it only embeds.
        """

    @abstractmethod
    def add_embedding(self, request: EmbedRequest) -> None:
        """Queue an input to embed; it shares the batch with everything else.

        Raises:
            Overloaded: the waiting queue is full.
            ContextLengthExceeded: it could never fit into the pool or the model's context.
            BadRequest: no tokens, more dimensions than the model has, or its key is in use.
        """

    @abstractmethod
    def prepare_grammar(self, spec: GrammarSpec) -> None:
        """Compile a grammar ahead of the request that needs it; without this ``add`` and ``commit`` compile it.

        Raises:
            BadRequest: it cannot be compiled.
        """

    @abstractmethod
    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """End a request (or some choices) in any phase, reservations included; unknown keys are ignored."""

    @abstractmethod
    def step(self) -> StepResult:
        """Run one step: schedule, execute, sample, retire. Without work it returns an empty result.

        With lag 1 it launches a step and retires the one before, so the first call returns no tokens. A row that makes
        the runner raise ends alone, in ``errors``.

        Raises:
            Exception: the runner computes nothing at all any more; the engine must not be used again.
        """

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """``step`` would do something."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """Snapshot after the last step or call."""

    @abstractmethod
    def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        """Tokens of the prompt, last one excluded, that the prefix cache holds now. References nothing."""

    @abstractmethod
    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Reference the cached prefix and take blocks for the rest of the prompt; ``None`` when there is no room."""

    @abstractmethod
    def scatter(
        self, key: RequestKey, token_begin: int, token_end: int, layer_begin: int, layer_end: int, payload: memoryview
    ) -> None:
        """Write received KV into reserved blocks; an abort during the call leaves them fenced until it returns.

        Raises:
            KeyError: no such reservation (it was aborted or committed).
            ValueError: the range is outside of the reservation, or the payload has the wrong size.
        """

    @abstractmethod
    def commit(self, key: RequestKey) -> None:
        """Make reserved blocks visible and let the request join the batch at its last prompt token.

        The caller has verified full coverage. Raises ``KeyError`` for an unknown reservation.
        """

    @abstractmethod
    def add_prefill(self, job: PrefillJob) -> None:
        """Queue a prefill job; takes nothing yet. Raises like ``add``."""

    @abstractmethod
    def grant(self, leg: str) -> None:
        """Let a job that is READY run. Raises ``KeyError`` for an unknown leg."""

    @abstractmethod
    def gather(self, leg: str, token_begin: int, token_end: int, layer_begin: int, layer_end: int) -> memoryview:
        """Read computed KV of a job in wire layout. Raises ``KeyError`` for an unknown leg."""

    @abstractmethod
    def release_prefill(self, leg: str) -> None:
        """End a job in any phase; its blocks become evictable, or fenced while a gather runs. Unknown: ignored."""

    @abstractmethod
    def forget_blocks(self, hashes: list[bytes]) -> int:
        """Drop blocks from the prefix cache by name; returns how many were known."""

    @abstractmethod
    def load_adapter(self, files: AdapterFiles) -> None:
        """See ``Runner.load_adapter``."""

    @abstractmethod
    def pin_adapter(self, digest: str) -> bool:
        """Keep a loaded adapter from being evicted; ``False`` when it is not loaded. Pins count."""

    @abstractmethod
    def unpin_adapter(self, digest: str) -> None:
        """Take one pin back."""
