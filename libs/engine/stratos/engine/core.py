"""The engine core: joins scheduler, block manager and runner, and keeps the books of requests and jobs.

A step is: schedule (under the lock) -> launch, sample, collect (without it) -> retire (under the lock).  The lock
exists for ``gather``, ``scatter`` and ``status``, which other threads may call while a step runs; everything
else is called by the thread that owns the engine.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import BadRequest, ContextLengthExceeded, Internal, Overloaded, StratosError
from stratos.core.adapter_files import AdapterFiles
from stratos.core.block_hash import chain_root
from stratos.core.request import ChoiceOutput, ChoiceState, EngineRequest, FinishReason, PrefillJob, RequestKey
from stratos.engine.block_manager import BlockManager
from stratos.engine.engine import Engine, EngineStatus, PrefillEvent, PrefillEventKind, Reservation, StepResult
from stratos.engine.plan import PlanRow, SampledToken, SampleSpec, StepPlan, StepTokens
from stratos.engine.runner.base import Runner
from stratos.engine.scheduler import Decision, Scheduler
from stratos.engine.sequence import JobState, RequestState, ReservedState, Sequence
from stratos.engine.settings import SchedulerConfig


class EngineCore(Engine):
    """The one implementation of ``Engine``; ``runner`` decides what computes."""

    def __init__(self, runner: Runner, config: SchedulerConfig, clock: Clock | None = None) -> None:
        self.info = runner.info
        self._runner = runner
        self._config = config
        self._clock = clock or SystemClock()
        self._blocks = BlockManager(
            runner.info.num_blocks,
            runner.info.geometry.block_size,
            enable_prefix_cache=config.enable_prefix_cache,
        )
        self._scheduler = Scheduler(config, self._blocks, self._clock)
        self._requests: dict[RequestKey, RequestState] = {}
        self._reservations: dict[RequestKey, ReservedState] = {}
        self._jobs: dict[str, JobState] = {}
        self._adapter_pins: Counter[str] = Counter()
        self._copies: list[tuple[int, int, Sequence]] = []
        """Copy-on-write that the next plan does: source, destination, owner of the destination."""
        self._new_events: list[PrefillEvent] = []
        self._tokens_by_tenant: Counter[str] = Counter()
        self._seq_ids = itertools.count()
        self._step = 0
        self._lock = threading.RLock()
        self._status = self._snapshot()

    # -- requests ----------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request whose prompt is computed here."""
        self._check_size(len(request.prompt_ids) + 1)
        open_choices = [c for c in request.choices if not c.finished]
        with self._changing():
            if len(self._scheduler.waiting) + len(open_choices) > self._config.max_num_waiting:
                raise Overloaded("the worker's waiting queue is full")
            state = self._open_request(request, open_choices)
            self._scheduler.enqueue(self._first_sequence(state, open_choices[0]))

    def _open_request(self, request: EngineRequest, open_choices: list[ChoiceState]) -> RequestState:
        if not open_choices:
            raise BadRequest("every choice of the request is finished already", param="choices")
        if request.key in self._requests or request.key in self._reservations:
            raise BadRequest("this attempt of the request is here already", param="request_id")
        state = RequestState(request, self._root(request.adapter_digest, request.cache_salt))
        state.siblings = open_choices[1:]
        self._requests[request.key] = state
        return state

    def _first_sequence(self, state: RequestState, choice: ChoiceState) -> Sequence:
        sequence = self._new_sequence(state, choice)
        state.sequences[choice.index] = sequence
        return sequence

    def _new_sequence(self, state: RequestState, choice: ChoiceState) -> Sequence:
        request = state.request
        return Sequence(
            seq_id=next(self._seq_ids),
            tokens=[*request.prompt_ids, *choice.emitted_ids],
            root=state.root,
            adapter_digest=request.adapter_digest,
            priority_class=request.priority_class,
            arrival_s=request.arrival_s,
            deadline_s=request.deadline_s,
            request=state,
            choice=choice.index,
        )

    def _check_size(self, num_tokens: int) -> None:
        if num_tokens > self.info.max_model_len:
            raise ContextLengthExceeded(f"{num_tokens} tokens do not fit the context of {self.info.max_model_len}")
        if self._blocks.blocks_for(num_tokens) > self._blocks.num_blocks:
            capacity = self._blocks.num_blocks * self._blocks.block_size
            raise ContextLengthExceeded(f"{num_tokens} tokens do not fit the KV pool of {capacity} tokens")

    def _root(self, adapter_digest: str, cache_salt: bytes) -> bytes:
        return chain_root(self.info.identity, adapter_digest, cache_salt)

    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """End a request, or some of its choices, in any phase."""
        with self._changing():
            reservation = self._reservations.get(key)
            state = self._requests.get(key)
            if reservation is not None and not choice_indexes:
                self._drop_reservation(key, reservation)
            if state is None:
                return
            state.siblings = [c for c in state.siblings if choice_indexes and c.index not in choice_indexes]
            doomed = [i for i in state.sequences if not choice_indexes or i in choice_indexes]
            if state.siblings and len(doomed) == len(state.sequences):
                self._promote_sibling(state)
            for index in doomed:
                self._scheduler.remove(state.sequences.pop(index))
            if not state.num_open_choices:
                del self._requests[key]

    def _promote_sibling(self, state: RequestState) -> None:
        """The choice that computes the prompt goes: the next one starts from the prefix cache."""
        heir = self._new_sequence(state, state.siblings.pop(0))
        state.sequences[heir.choice] = heir
        self._scheduler.enqueue(heir)

    # -- hand-off, receiving side ------------------------------------------------------------------

    def match(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> int:
        """Tokens of the prompt, last one excluded, that the prefix cache holds now."""
        size = self._blocks.block_size
        probe = Sequence(seq_id=-1, tokens=list(prompt_ids), root=self._root(adapter_digest, cache_salt))
        with self._lock:
            return size * len(self._blocks.cache.match(probe.chain((len(prompt_ids) - 1) // size, size)))

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Reference the cached prefix and take blocks for the rest of the prompt."""
        self._check_size(len(request.prompt_ids) + 1)
        if request.key in self._requests or request.key in self._reservations:
            raise BadRequest("this attempt of the request is here already", param="request_id")
        num_choices = sum(not choice.finished for choice in request.choices)
        size, num_tokens = self._blocks.block_size, len(request.prompt_ids) - 1
        with self._changing():
            if self._scheduler.num_free_seqs < num_choices:
                return None
            root = self._root(request.adapter_digest, request.cache_salt)
            probe = Sequence(seq_id=-1, tokens=list(request.prompt_ids), root=root)
            prefix = self._blocks.cache.match(probe.chain(num_tokens // size, size))
            self._blocks.reference(prefix)
            missing = self._blocks.blocks_for(num_tokens) - len(prefix)
            has_room = self._blocks.num_available >= missing + num_choices
            reserved = self._blocks.allocate(missing, reserved=True) if has_room else None
            if reserved is None:
                self._blocks.release(prefix)
                return None
            skip = len(prefix) * size
            self._reservations[request.key] = ReservedState(
                request, root, prefix, reserved, skip, num_tokens, num_choices
            )
            self._scheduler.num_reserved_seqs += num_choices
            return Reservation(key=request.key, num_skip_tokens=skip, num_tokens=num_tokens)

    def scatter(
        self, key: RequestKey, token_begin: int, token_end: int, layer_begin: int, layer_end: int, payload: memoryview
    ) -> None:
        """Write received KV into reserved blocks."""
        with self._lock:
            reservation = self._reservations[key]
            if not reservation.num_skip_tokens <= token_begin < token_end <= reservation.num_tokens:
                raise ValueError(f"tokens [{token_begin}, {token_end}) are outside of the reservation")
            if not 0 <= layer_begin < layer_end <= self.info.geometry.num_layers:
                raise ValueError(f"no layers [{layer_begin}, {layer_end}) in this model")
            table = reservation.block_table
            touched = reservation.reserved_blocks
            self._blocks.fence(touched)
        try:
            self._runner.scatter(table, token_begin, token_end, layer_begin, layer_end, payload)
        finally:
            with self._changing():
                self._blocks.unfence(touched)

    def commit(self, key: RequestKey) -> None:
        """Make reserved blocks visible and let the request join the batch."""
        with self._changing():
            reservation = self._reservations.pop(key)
            self._scheduler.num_reserved_seqs -= reservation.num_choices
            self._blocks.publish(reservation.reserved_blocks)
            open_choices = [c for c in reservation.request.choices if not c.finished]
            state = self._open_request(reservation.request, open_choices)
            state.num_cached_tokens = reservation.num_skip_tokens
            state.num_transferred_tokens = reservation.num_tokens - reservation.num_skip_tokens
            first = self._first_sequence(state, open_choices[0])
            first.block_table = reservation.block_table
            first.num_computed = reservation.num_tokens
            first.num_named = len(reservation.prefix_blocks)
            self._name_blocks(first)
            self._scheduler.run_now(first)
            self._fork_siblings(first)

    def _drop_reservation(self, key: RequestKey, reservation: ReservedState) -> None:
        del self._reservations[key]
        self._scheduler.num_reserved_seqs -= reservation.num_choices
        self._blocks.release(reservation.block_table)

    # -- hand-off, sending side --------------------------------------------------------------------

    def add_prefill(self, job: PrefillJob) -> None:
        """Queue a prefill job."""
        self._check_size(len(job.token_ids))
        if not job.token_ids or job.leg in self._jobs:
            raise BadRequest("a prefill job needs tokens and a leg of its own", param="leg")
        with self._changing():
            if len(self._scheduler.waiting) >= self._config.max_num_waiting:
                raise Overloaded("the prefill queue is full")
            sequence = Sequence(
                seq_id=next(self._seq_ids),
                tokens=list(job.token_ids),
                root=self._root(job.adapter_digest, job.cache_salt),
                adapter_digest=job.adapter_digest,
                priority_class=job.priority_class,
                arrival_s=job.arrival_s,
                deadline_s=job.deadline_s,
            )
            sequence.job = self._jobs[job.leg] = JobState(job, sequence)
            self._scheduler.enqueue(sequence)

    def grant(self, leg: str) -> None:
        """Let a ready job run."""
        with self._changing():
            state = self._jobs[leg]
            if not state.is_ready or state.is_granted:
                return
            state.is_granted = True
            self._scheduler.grant(state.sequence)
            if not state.job.compute or not state.sequence.remaining:
                self._end_job(state)

    def gather(self, leg: str, token_begin: int, token_end: int, layer_begin: int, layer_end: int) -> memoryview:
        """Read computed KV of a job."""
        with self._lock:
            state = self._jobs[leg]
            if not 0 <= token_begin < token_end <= state.num_available:
                raise ValueError(f"tokens [{token_begin}, {token_end}) are not computed yet")
            table = list(state.sequence.block_table)
            self._blocks.fence(table)
        try:
            return self._runner.gather(table, token_begin, token_end, layer_begin, layer_end)
        finally:
            with self._changing():
                self._blocks.unfence(table)

    def release_prefill(self, leg: str) -> None:
        """End a job in any phase."""
        with self._changing():
            state = self._jobs.pop(leg, None)
            if state is not None:
                self._scheduler.remove(state.sequence)

    def _end_job(self, state: JobState) -> None:
        """All tokens are computed: the job leaves the batch and keeps its blocks until it is released."""
        self._scheduler.running.remove(state.sequence)
        self._new_events.append(
            PrefillEvent(kind=PrefillEventKind.DONE, leg=state.job.leg, num_tokens=state.num_available)
        )

    # -- one step ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """``step`` would do something."""
        return self._scheduler.has_work or bool(self._new_events)

    def step(self) -> StepResult:
        """Schedule, execute, sample, retire."""
        with self._changing():
            decision = self._scheduler.schedule()
            result = StepResult(step=self._step)
            self._announce(decision, result)
            decision.scheduled = [(s, count) for s, count in decision.scheduled if s in self._scheduler.running]
            if not decision.scheduled:
                return result
            plan = self._plan(decision)
        handle = self._runner.launch(plan)
        self._runner.sample(handle)
        tokens = self._runner.collect(handle)
        with self._changing():
            self._step += 1
            result.num_rows = len(plan.rows)
            self._blocks.release([source for source, _ in plan.copies])
            self._retire(decision, tokens, result)
        return result

    def _announce(self, decision: Decision, result: StepResult) -> None:
        for job in decision.ready_jobs:
            job.is_ready = True
            job.num_available = job.sequence.num_computed
            event = PrefillEvent(kind=PrefillEventKind.READY, leg=job.job.leg, num_tokens=job.num_available)
            result.prefill_events.append(event)
        result.prefill_events.extend(self._new_events)
        self._new_events.clear()
        for sequence, error in decision.expired:
            self._fail(sequence, error, result)
        for sequence in decision.exhausted:
            self._finish(sequence, FinishReason.LENGTH, result)

    def _plan(self, decision: Decision) -> StepPlan:
        pending, self._copies = self._copies, []
        copies = []
        for source, destination, owner in pending:
            if destination in owner.block_table:
                copies.append((source, destination))
            else:  # its owner was aborted or preempted since
                self._blocks.release([source])
        rows = tuple(self._row(sequence, count) for sequence, count in decision.scheduled)
        return StepPlan(step=self._step, rows=rows, copies=tuple(copies))

    def _row(self, sequence: Sequence, count: int) -> PlanRow:
        start = sequence.num_computed
        state = sequence.request
        if state is not None and state.first_scheduled_s is None:
            state.first_scheduled_s = self._clock.now()
            if state.num_cached_tokens is None:
                state.num_cached_tokens = start
        return PlanRow(
            seq_id=sequence.seq_id,
            token_ids=tuple(sequence.tokens[start : start + count]),
            start=start,
            block_table=tuple(sequence.block_table[: self._blocks.blocks_for(start + count)]),
            adapter_digest=sequence.adapter_digest,
            sample=self._sample_spec(sequence, state) if state and count == sequence.remaining else None,
        )

    def _sample_spec(self, sequence: Sequence, state: RequestState) -> SampleSpec:
        request, num_prompt = state.request, len(state.request.prompt_ids)
        return SampleSpec(
            key=request.key,
            choice=sequence.choice,
            seed=request.seed,
            position=len(sequence.tokens),
            params=request.sampling,
            prompt_ids=request.prompt_ids,
            output_ids=tuple(sequence.tokens[num_prompt:]) if request.sampling.has_penalties else (),
            num_output_tokens=len(sequence.tokens) - num_prompt,
        )

    def _retire(self, decision: Decision, tokens: StepTokens, result: StepResult) -> None:
        sampled = {token.seq_id: token for token in tokens.tokens}
        for sequence, count in decision.scheduled:
            begin = sequence.num_computed
            sequence.num_computed += count
            if sequence.job is not None:
                self._name_blocks(sequence)
                self._retire_job(sequence.job, count, result)
                continue
            state = sequence.request
            assert state is not None
            if state.sequences.get(sequence.choice) is not sequence:
                continue
            error = tokens.errors.get(sequence.seq_id)
            if error is not None:
                self._fail(sequence, Internal(error), result)
                continue
            self._name_blocks(sequence)
            if sequence.num_computed >= len(state.request.prompt_ids) - 1:
                self._fork_siblings(sequence)
            computed_prompt = min(sequence.num_computed, len(state.request.prompt_ids)) - begin
            state.num_recomputed_tokens += max(0, computed_prompt) if sequence.choice == self._lead(state) else 0
            if sequence.seq_id in sampled:
                self._append(sequence, state, sampled[sequence.seq_id], result)

    @staticmethod
    def _lead(state: RequestState) -> int:
        return next(choice.index for choice in state.request.choices if not choice.finished)

    def _retire_job(self, state: JobState, count: int, result: StepResult) -> None:
        state.num_available = state.sequence.num_computed
        self._tokens_by_tenant[state.job.tenant] += count
        if state.sequence.remaining:
            event = PrefillEvent(kind=PrefillEventKind.CHUNK, leg=state.job.leg, num_tokens=state.num_available)
            result.prefill_events.append(event)
        else:
            self._end_job(state)
            result.prefill_events.append(self._new_events.pop())

    def _name_blocks(self, sequence: Sequence) -> None:
        """Offer full, computed blocks to the prefix cache."""
        size = self._blocks.block_size
        num_full = sequence.num_computed // size
        if num_full <= sequence.num_named or not self._config.enable_prefix_cache:
            return
        names = sequence.chain(num_full, size)
        for index in range(sequence.num_named, num_full):
            self._blocks.cache.insert(names[index], sequence.block_table[index])
        sequence.num_named = num_full

    def _fork_siblings(self, lead: Sequence) -> None:
        """Start the other choices on the prompt's blocks; the block that is not full is copied."""
        state = lead.request
        assert state is not None
        size, num_tokens = self._blocks.block_size, len(state.request.prompt_ids) - 1
        for choice in state.siblings:
            sequence = self._new_sequence(state, choice)
            state.sequences[choice.index] = sequence
            num_shared, has_partial = num_tokens // size, num_tokens % size > 0
            private = self._blocks.allocate(int(has_partial)) if self._scheduler.num_free_seqs > 0 else None
            if private is None:
                self._scheduler.enqueue(sequence)
                continue
            shared = lead.block_table[:num_shared]
            self._blocks.reference(shared)
            if private:
                source = lead.block_table[num_shared]
                self._blocks.reference([source])  # until the copy is done
                self._copies.append((source, private[0], sequence))
            sequence.block_table = shared + private
            sequence.num_computed = num_tokens
            sequence.num_named = min(num_shared, lead.num_named)
            self._scheduler.run_now(sequence)
        state.siblings = []

    def _append(self, sequence: Sequence, state: RequestState, token: SampledToken, result: StepResult) -> None:
        request = state.request
        offset = len(sequence.tokens) - len(request.prompt_ids)
        sequence.tokens.append(token.token_id)
        self._tokens_by_tenant[request.tenant] += 1
        output = ChoiceOutput(request.key, sequence.choice, offset, [token.token_id])
        if token.logprobs is not None:
            output.logprobs.append(token.logprobs)
        result.outputs.append(output)
        output.finish_reason = self._finish_reason(sequence, request, token.token_id, offset + 1)
        if output.finish_reason is not None:
            self._close_choice(sequence, state, result)

    def _finish_reason(
        self, sequence: Sequence, request: EngineRequest, token_id: int, num_output: int
    ) -> FinishReason | None:
        params = request.sampling
        ends = token_id in self.info.eos_token_ids and not params.ignore_eos
        if (ends or token_id in params.stop_token_ids) and num_output > params.min_tokens:
            return FinishReason.STOP
        if num_output >= params.max_tokens or len(sequence.tokens) >= self.info.max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, sequence: Sequence, reason: FinishReason, result: StepResult) -> None:
        """End a choice between tokens."""
        state = sequence.request
        assert state is not None
        offset = len(sequence.tokens) - len(state.request.prompt_ids)
        result.outputs.append(ChoiceOutput(state.key, sequence.choice, offset, [], finish_reason=reason))
        self._close_choice(sequence, state, result)

    def _close_choice(self, sequence: Sequence, state: RequestState, result: StepResult) -> None:
        self._scheduler.remove(sequence)
        del state.sequences[sequence.choice]
        if not state.num_open_choices:
            del self._requests[state.key]
            result.finished_stats[state.key] = state.stats()

    def _fail(self, sequence: Sequence, error: StratosError, result: StepResult) -> None:
        """End the whole request, or job, that ``sequence`` belongs to."""
        if sequence.job is not None:
            leg = sequence.job.job.leg
            result.prefill_errors[leg] = error
            self.release_prefill(leg)
            return
        assert sequence.request is not None
        key = sequence.request.key
        result.errors[key] = error
        result.finished_stats[key] = sequence.request.stats()
        self.abort(key)

    # -- the rest ----------------------------------------------------------------------------------

    def forget_blocks(self, hashes: list[bytes]) -> int:
        """Drop blocks from the prefix cache by name."""
        with self._changing():
            return self._blocks.forget(hashes)

    def load_adapter(self, files: AdapterFiles) -> None:
        """Load an adapter, making room by unloading the least recently used one without a pin."""
        with self._lock:
            pinned = frozenset(self._adapter_pins)
        self._runner.load_adapter(files, pinned)
        with self._changing():
            pass  # the snapshot shows it

    def pin_adapter(self, digest: str) -> bool:
        """Keep a loaded adapter; pins count."""
        with self._lock:
            if digest not in self._runner.resident_adapters():
                return False
            self._adapter_pins[digest] += 1
            return True

    def unpin_adapter(self, digest: str) -> None:
        """Take one pin back."""
        with self._lock:
            self._adapter_pins[digest] -= 1
            if self._adapter_pins[digest] <= 0:
                del self._adapter_pins[digest]

    def status(self) -> EngineStatus:
        """Snapshot after the last step or call."""
        return self._status

    def verify(self) -> None:
        """Recount the block ledger from scratch; for tests and for the idle integrity check."""
        with self._lock:
            self._blocks.verify()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
            self._status = self._snapshot()

    def _snapshot(self) -> EngineStatus:
        waiting = self._scheduler.waiting
        return EngineStatus(
            step=self._step,
            is_computing=bool(self._scheduler.running),
            blocks=self._blocks.ledger(),
            num_waiting=len(waiting),
            num_running=len(self._scheduler.running),
            num_queued_tokens=sum(s.remaining for s in waiting) + sum(s.remaining for s in self._scheduler.running),
            num_prefill_jobs=len(self._jobs),
            resident_adapters=self._runner.resident_adapters(),
            tokens_by_tenant=dict(self._tokens_by_tenant),
        )
