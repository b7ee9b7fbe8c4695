"""Prefill jobs of a source: queued, ready (blocks taken, waits for its grant), running, done, released.

A job whose grant is late is parked: its blocks and its seat go to others, its place in the order of service stays.
A job that computes nothing is ready at once with what the prefix cache has: it takes no queue, no seat, no step.
"""

from __future__ import annotations

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEvent, PrefillEventKind
from stratos.engine.requests.context import EngineContext
from stratos.engine.sequence import JobState, Sequence


class PrefillJobTable:
    """Prefill jobs by leg, and the events they cause."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._states: dict[str, JobState] = {}
        self.events: list[PrefillEvent] = []
        """Not yet handed out with a step's result."""

    def __len__(self) -> int:
        return len(self._states)

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(self._states)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Sequences of all jobs: those that are done, or compute nothing, hold blocks and are in no queue."""
        return tuple(state.sequence for state in self._states.values())

    def __getitem__(self, leg: str) -> JobState:
        return self._states[leg]

    def add(self, job: PrefillJob) -> None:
        """Queue a job; takes nothing yet."""
        context = self._context
        if not job.token_ids or job.leg in self._states:
            raise BadRequest("a prefill job needs tokens and a leg of its own", param="leg")
        if job.compute:
            context.check_size(len(job.token_ids))
            context.kv.admission.check_input(len(job.token_ids))
            if len(context.scheduler.waiting) >= context.config.max_num_waiting:
                raise Overloaded("the prefill queue is full")
        sequence = Sequence(
            seq_id=next(context.seq_ids),
            tokens=list(job.token_ids),
            root=context.root(job.terms.adapter.digest, job.terms.cache_salt),
            terms=job.terms,
        )
        sequence.job = self._states[job.leg] = JobState(job, sequence)
        if job.compute:
            context.scheduler.enqueue(sequence)
        else:
            self._reference(sequence.job)

    def _reference(self, state: JobState) -> None:
        """Hold the cached blocks of a job that computes nothing."""
        sequence, blocks = state.sequence, self._context.kv.blocks
        hashes = sequence.hash_chain(len(sequence.tokens) // blocks.block_size, blocks.block_size)
        cached = blocks.match(hashes) if self._context.config.shares_prefixes else []
        if (states := self._context.kv.states) is not None:  # the state that is sent is that of the end
            is_whole = len(cached) * blocks.block_size == len(sequence.tokens)
            cached = cached if is_whole else []
            sequence.states = states.take(hashes[: len(cached)], num_own=0)
        blocks.reference(cached)
        sequence.block_table, sequence.num_hashed = cached, len(cached)
        sequence.num_computed = len(cached) * blocks.block_size
        self.make_ready(state)

    def make_ready(self, state: JobState) -> None:
        """The scheduler took blocks for the job: it waits for its grant now."""
        state.is_ready = True
        state.num_available = state.sequence.num_computed
        self._emit(PrefillEventKind.READY, state)
        if state.is_granted:  # while it was parked
            self._run(state)

    def park(self, leg: str) -> None:
        """The grant is late: a ready job gives its blocks back; it has them again in its turn after the grant."""
        state = self._states.get(leg)
        if state is None or not state.is_ready or state.is_granted or not state.job.compute:
            return
        state.is_ready, state.is_parked = False, True
        self._context.scheduler.park(state.sequence)

    def grant(self, leg: str) -> None:
        state = self._states[leg]
        if state.is_granted or not (state.is_ready or state.is_parked):
            return
        state.is_granted = True
        if state.is_parked:
            state.is_parked = False
            self._context.scheduler.unpark(state.sequence)
        else:
            self._run(state)

    def _run(self, state: JobState) -> None:
        if not state.job.compute:
            self._context.pin_prompt(state.sequence)
            self._emit(PrefillEventKind.DONE, state)
            return
        self._context.scheduler.grant(state.sequence)
        if not state.sequence.remaining:
            self._end(state)

    def advance(self, state: JobState) -> None:
        """More tokens of the job are computed."""
        self._context.cache_full_blocks(state.sequence)
        state.num_available = state.sequence.num_computed
        if state.num_available < len(state.sequence.tokens):
            self._emit(PrefillEventKind.CHUNK, state)
        else:
            self._end(state)

    def release(self, leg: str) -> None:
        """End a job in any phase."""
        state = self._states.pop(leg, None)
        if state is not None:
            self._context.scheduler.remove(state.sequence)

    def _end(self, state: JobState) -> None:
        """All tokens are computed: the job leaves the batch and keeps its blocks until it is released."""
        self._context.scheduler.running.remove(state.sequence)
        self._context.pin_prompt(state.sequence)
        self._emit(PrefillEventKind.DONE, state)

    def _emit(self, kind: PrefillEventKind, state: JobState) -> None:
        self.events.append(PrefillEvent(kind=kind, leg=state.job.leg, num_tokens=state.num_available))
