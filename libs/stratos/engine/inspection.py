"""Contents of an engine, in more detail than its status: a copy for tests and diagnostics, made on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratos.core.requests.records import RequestKey
from stratos.engine.sequence import Queue, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceInspection:
    """One sequence in one of the scheduler's queues."""

    queue: Queue
    key: RequestKey | None
    """Key of its generation request; ``None`` for prefill jobs and inputs to embed."""
    seq_id: int
    choice: int
    block_table: tuple[int, ...]
    num_computed: int
    num_output: int
    """0 where nothing is generated."""
    num_in_flight: int
    remaining: int
    epoch: int
    is_swapped: bool
    awaits_copy: bool
    has_grammar: bool

    @classmethod
    def of(cls, queue: Queue, sequence: Sequence) -> SequenceInspection:
        """A copy of the facts, which later steps do not change."""
        state = sequence.request
        return cls(
            queue=queue,
            key=state.key if state is not None else None,
            seq_id=sequence.seq_id,
            choice=sequence.choice,
            block_table=tuple(sequence.block_table),
            num_computed=sequence.num_computed,
            num_output=sequence.num_output if state is not None else 0,
            num_in_flight=sequence.num_in_flight,
            remaining=sequence.remaining,
            epoch=sequence.epoch,
            is_swapped=sequence.swapped is not None,
            awaits_copy=sequence.awaits_copy,
            has_grammar=sequence.grammar is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInspection:
    """Everything that a request could leave over, and what decisions are made from."""

    sequences: tuple[SequenceInspection, ...]
    open_requests: tuple[RequestKey, ...]
    open_reservations: tuple[RequestKey, ...]
    open_embeddings: tuple[RequestKey, ...]
    open_jobs: tuple[str, ...]
    """Legs."""
    max_batch_slots: int
    num_free_batch_slots: int
    num_reserved_output_blocks: int
    """Blocks of output that admitted sequences and hand-offs are expected to take yet."""
    expected_output_tokens: int
    """Output that admission expects of a choice without a lower limit of its own."""
    max_window_blocks: int | None
    """Blocks that a sequence holds at most where the model's window is bounded."""
    cached_blocks: Mapping[bytes, int]
    """Device blocks that may be found, by their hash."""
    num_kept_blocks: int
    """Cached blocks that are being copied to host memory."""
    num_loading_blocks: int
    """Blocks that are being filled from host memory."""
    num_pending_copies: int
    """Copies-on-write that no plan has taken."""
    launched_copies: tuple[tuple[int, int], ...]
    """(source, destination) of the copies-on-write of the step in flight."""
    has_step_fences: bool
    """Blocks come back when the step in flight retires."""
    adapter_pins: Mapping[str, int]
    num_compiled_grammars: int

    @property
    def has_open_work(self) -> bool:
        """Something runs, waits, is reserved or is being copied."""
        is_open = self.sequences or self.open_requests or self.open_reservations or self.open_embeddings
        return bool(
            is_open or self.open_jobs or self.num_kept_blocks or self.num_loading_blocks or self.has_step_fences
        )
