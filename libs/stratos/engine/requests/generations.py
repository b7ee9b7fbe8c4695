"""Generation requests: their choices, how they fork from the prompt, and how choices end."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from stratos.common.errors import BadRequest, Overloaded
from stratos.core.requests.records import (
    ChoiceOutput,
    ChoiceState,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    RequestKey,
)
from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow, PromptTargets, SampledToken, SampleSpec
from stratos.engine.contract.results import StepResult
from stratos.engine.requests.context import EngineContext
from stratos.engine.sequence import RELEASED, RequestState, ReservedState, Sequence


class BlockCopy(NamedTuple):
    """Copy-on-write: the source is referenced until the copy is done, the destination belongs to ``owner``."""

    source: int
    destination: int
    owner: Sequence
    epoch: int
    """Epoch of the owner when the copy was planned."""

    @property
    def is_wanted(self) -> bool:
        """The owner was neither aborted nor preempted since the copy was planned."""
        return self.owner.is_open and self.owner.epoch == self.epoch


class GenerationTable:
    """Open requests by key, and the block copies that forks need before the next step."""

    def __init__(self, context: EngineContext) -> None:
        self._context, self._kv = context, context.kv
        self._states: dict[RequestKey, RequestState] = {}
        self._copies: list[BlockCopy] = []
        """Copies of the next plan."""

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._states

    @property
    def open(self) -> tuple[RequestKey, ...]:
        return tuple(self._states)

    @property
    def num_pending_copies(self) -> int:
        return len(self._copies)

    # -- coming and going --------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request whose prompt is computed here."""
        scheduler = self._context.scheduler
        num_open = sum(not choice.finished for choice in request.choices)
        if len(scheduler.waiting) + num_open > self._context.config.max_num_waiting:
            raise Overloaded("the worker's waiting queue is full")
        scheduler.enqueue(self._open(request))

    def adopt(self, reservation: ReservedState, num_came: int | None = None) -> None:
        """Let a hand-off join the batch behind what came of it; gives its blocks back when it raises.

        Args:
            reservation: it has ended, and its blocks are allocated.
            num_came: tokens [0, n) that are there; ``None`` for all but the last one of the prompt.
        """
        num_here = reservation.num_tokens if num_came is None else max(reservation.num_skip_tokens, num_came)
        if reservation.states is not None and num_here < reservation.num_tokens:
            num_here = reservation.num_skip_tokens  # the state that belongs to what came is that of its end
        try:
            parent = self._open(reservation.request)
        except BaseException:
            self._kv.blocks.release(reservation.block_table)
            if self._kv.states is not None and reservation.states is not None:
                self._kv.states.pool.release(reservation.states.slots)
            raise
        state = parent.request
        assert state is not None
        num_prompt = len(reservation.request.prompt_ids)  # what was emitted elsewhere is no part of the account
        state.num_cached_tokens = min(reservation.num_skip_tokens, num_prompt)
        state.num_transferred_tokens = min(num_here, num_prompt) - state.num_cached_tokens
        parent.block_hashes, parent.block_table = reservation.block_hashes, reservation.block_table
        tail = self._kv.admission.tail_blocks(reservation.request, reservation.num_tokens)
        parent.budget_blocks = len(parent.block_table) + parent.output_blocks + tail
        parent.num_computed = num_here
        if (states := self._kv.states) is not None and reservation.states is not None:
            states.receive(reservation.states, is_whole=num_here > reservation.num_skip_tokens)
            parent.states = reservation.states
        parent.num_hashed = len(reservation.prefix_blocks)
        self._context.cache_full_blocks(parent)
        self._context.scheduler.run_now(parent)
        if num_here >= num_prompt - 1:
            self._fork_choices(parent)

    def _open(self, request: EngineRequest) -> Sequence:
        """Enter a request; returns the sequence of its first open choice, the others wait for the prompt."""
        open_choices = [choice for choice in request.choices if not choice.finished]
        if not open_choices:
            raise BadRequest("every choice of the request is finished already", param="choices")
        state = RequestState(request, self._context.root(request.terms.adapter.digest, request.terms.cache_salt))
        state.matchers = self._context.grammars.matchers(request)
        state.pending_forks = open_choices
        self._states[request.key] = state
        return self._start_parent(state)

    def _start_parent(self, state: RequestState) -> Sequence:
        """The first choice that waits for the prompt computes it, for all of them."""
        choice = state.pending_forks.pop(0)
        parent = self._start_choice(state, choice)
        parent.output_blocks = self._kv.admission.output_blocks(state.request, 1 + len(state.pending_forks))
        state.parent_choice = choice.index
        return parent

    def _start_choice(self, state: RequestState, choice: ChoiceState) -> Sequence:
        request = state.request
        sequence = state.sequences[choice.index] = Sequence(
            seq_id=next(self._context.seq_ids),
            tokens=[*request.prompt_ids, *choice.emitted_ids],
            root=state.root,
            terms=request.terms,
            max_len=min(len(request.prompt_ids) + request.sampling.max_tokens, self._context.info.max_model_len),
            output_blocks=self._kv.admission.output_blocks(request, 1),
            request=state,
            choice=choice.index,
            grammar=state.matchers.get(choice.index),
        )
        return sequence

    def abort(self, key: RequestKey, choice_indexes: tuple[int, ...] = ()) -> None:
        """End a request, or some of its choices; unknown keys are ignored."""
        state = self._states.get(key)
        if state is None:
            return
        state.pending_forks = [c for c in state.pending_forks if choice_indexes and c.index not in choice_indexes]
        doomed = [i for i in state.sequences if not choice_indexes or i in choice_indexes]
        if state.pending_forks and len(doomed) == len(state.sequences):
            # the choice that computes the prompt goes: the next one starts from the prefix cache; it waited, too
            waited_s = max(state.sequences[i].wait.seconds(self._context.clock.now()) for i in doomed)
            parent = self._start_parent(state)
            parent.wait.past_s = waited_s
            self._context.scheduler.enqueue(parent)
        for index in doomed:
            self._context.scheduler.remove(state.sequences.pop(index))
        self._drop_dead_copies()
        if not state.num_open_choices:
            del self._states[key]

    # -- one step ----------------------------------------------------------------------------------

    def drain_copies(self, plan: int, *, has_rows: bool = True) -> list[BlockCopy]:
        """Copies that ``plan`` must do; each holds a reference on its source until ``end_copies``.

        A plan without rows does none, but copies that are not wanted any more give their sources back.
        """
        self._drop_dead_copies()
        if not has_rows:
            return []
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.owner.last_plan = plan
            copy.owner.awaits_copy = False
        return copies

    def return_copies(self, copies: list[BlockCopy]) -> None:
        """The plan was not carried out: the next one does its copies."""
        self._copies = copies + self._copies
        for copy in copies:
            copy.owner.awaits_copy = True

    def _drop_dead_copies(self) -> None:
        dead = [copy for copy in self._copies if not copy.is_wanted]
        self._copies = [copy for copy in self._copies if copy.is_wanted]
        self._kv.blocks.release([copy.source for copy in dead])

    def end_copies(self, copies: list[BlockCopy]) -> None:
        """The plan is done: its copies no longer need their sources."""
        self._kv.blocks.release([copy.source for copy in copies])

    def row(self, sequence: Sequence, count: int) -> PlanRow:
        """The plan row that runs the next ``count`` tokens of a sequence."""
        start, state, embedding = sequence.num_scheduled, sequence.request, sequence.embedding
        if state is not None and state.first_scheduled_s is None:
            state.first_scheduled_s = self._context.clock.now()
            state.num_cached_tokens = start if state.num_cached_tokens is None else state.num_cached_tokens
        if sequence.drafts:
            return self._drafted_row(sequence, start)
        end, tokens = start + count, sequence.tokens
        continues = end > len(tokens)
        known = tokens[start:end]
        if continues:
            known.append(PREVIOUS_TOKEN)
        table_begin, block_table = self._kv.tables.plan_table(sequence, end)
        is_last = count == sequence.remaining
        return PlanRow(
            seq_id=sequence.seq_id,
            token_ids=tuple(known),
            start=start,
            block_table=block_table,
            table_begin=table_begin,
            adapter_digest=sequence.terms.adapter.digest,
            sample=_sample_spec(sequence, state) if state and is_last else None,
            pool=embedding.pooling(is_last_chunk=is_last) if embedding else None,
            state=self._kv.states.row(sequence, start, count) if self._kv.states is not None else None,
            targets=_prompt_targets(state, start, count) if state and state.wants_prompt_logprobs else None,
            continues=continues,
        )

    def _drafted_row(self, sequence: Sequence, start: int) -> PlanRow:
        """The row of a stream's last token and of the tokens that are drafted after it."""
        state, drafts = sequence.request, sequence.drafts
        assert state is not None
        first = _sample_spec(sequence, state)
        table_begin, block_table = self._kv.tables.plan_table(sequence, start + 1 + len(drafts))
        return PlanRow(
            seq_id=sequence.seq_id,
            token_ids=(sequence.tokens[-1], *drafts),
            start=start,
            block_table=block_table,
            table_begin=table_begin,
            adapter_digest=sequence.terms.adapter.digest,
            sample=first,
            verify=tuple(_after_drafts(first, drafts[:end]) for end in range(1, len(drafts) + 1)),
        )

    def with_history(self, spec: SampleSpec, sequence: Sequence) -> SampleSpec:
        """The spec of a launched row, now that every token before the one to be sampled is known."""
        return dataclasses.replace(spec, output_ids=tuple(sequence.tokens[len(spec.prompt_ids) :]))

    def add_prompt_logprobs(self, sequence: Sequence, begin: int, logprobs: list[PositionLogprobs]) -> None:
        """Keep log probabilities of prompt tokens, the first of which is predicted by position ``begin``."""
        assert sequence.request is not None
        known = sequence.request.prompt_logprobs
        assert begin <= len(known), "prompt tokens were skipped"
        known.extend(logprobs[len(known) - begin :])

    def advance(
        self, sequence: Sequence, begin: int, token: SampledToken | None, result: StepResult, *, follows: bool = False
    ) -> None:
        """Tokens from ``begin`` on are computed; append the sampled one, if the row sampled.

        ``follows``: the output added last is the sequence's, and takes the token, too.
        """
        state = sequence.request
        assert state is not None
        num_prompt = len(state.request.prompt_ids)
        self._context.cache_full_blocks(sequence)
        if state.pending_forks and sequence.num_computed >= num_prompt - 1:
            self._fork_choices(sequence)
        self._kv.tables.release_passed(sequence)
        if begin < num_prompt and sequence.choice == state.parent_choice:
            state.num_recomputed_tokens += max(0, min(sequence.num_computed, num_prompt) - begin)
        if token is not None:
            self._append(sequence, state, token, result, follows=follows)
        if not self._context.config.baseline.kv_cache:
            sequence.num_computed = 0

    def _fork_choices(self, parent: Sequence) -> None:
        """Start the other choices on the prompt's blocks; the block that is not full is copied."""
        state, blocks, scheduler = parent.request, self._kv.blocks, self._context.scheduler
        assert state is not None
        num_tokens = len(state.request.prompt_ids) - 1
        num_shared, num_partial = divmod(num_tokens, blocks.block_size)
        for choice in state.pending_forks:
            sequence = self._start_choice(state, choice)
            can_fork = scheduler.num_free_seqs > 0 and not self._kv.admission.has_slots
            can_fork = can_fork and self._kv.tables.can_fork(parent, num_tokens)
            can_fork = can_fork and self._fork_states(parent, sequence, num_tokens)
            private = blocks.allocate(1 if num_partial else 0) if can_fork else None
            if private is None:
                if sequence.states is not None and self._kv.states is not None:
                    self._kv.states.release(sequence)
                scheduler.enqueue(sequence)  # recomputes from the prefix cache when there is room
                continue
            shared = parent.block_table[:num_shared]
            blocks.reference([block for block in shared if block != RELEASED])
            if private:
                source = parent.block_table[num_shared]
                blocks.reference([source])  # until the copy is done
                self._copies.append(BlockCopy(source, private[0], sequence, sequence.epoch))
                sequence.awaits_copy = True
            sequence.block_hashes = parent.block_hashes[:num_shared]
            sequence.block_table, sequence.num_released = shared + private, parent.num_released
            self._kv.tables.share_passed(parent, sequence)
            tail = self._kv.admission.own_tail_blocks(sequence)
            sequence.budget_blocks = sequence.num_held + sequence.output_blocks + tail
            parent.budget_blocks -= sequence.output_blocks + len(private) + tail
            sequence.num_computed = num_tokens
            sequence.num_hashed = min(num_shared, parent.num_hashed)
            scheduler.run_now(sequence)
        state.pending_forks = []

    def _fork_states(self, parent: Sequence, child: Sequence, num_tokens: int) -> bool:
        """Give a choice the recurrent state after the prompt, where the model has some and the parent is just there."""
        states = self._kv.states
        return states is None or (parent.num_computed == num_tokens and states.fork(parent, child))

    def _append(
        self, sequence: Sequence, state: RequestState, token: SampledToken, result: StepResult, *, follows: bool
    ) -> None:
        request = state.request
        self._context.grammars.accept(sequence, token.token_id)
        if follows:
            output = result.outputs.pop()
            output.token_ids.append(token.token_id)
        else:
            output = ChoiceOutput(request.key, sequence.choice, sequence.num_output, [token.token_id])
        if token.logprobs is not None:
            output.logprobs.append(token.logprobs)
        sequence.tokens.append(token.token_id)
        output.finish_reason = self._finish_reason(sequence, request, token.token_id)
        result.outputs.append(output)
        if not state.has_started:
            state.has_started = True
            state.num_pinned_tokens, state.pinned_spans = self._context.pin_prompt(sequence)
            result.started_stats[state.key] = state.stats()
            if request.sampling.num_prompt_logprobs is not None:
                result.prompt_logprobs[state.key] = tuple(state.prompt_logprobs)
        if output.finish_reason is not None:
            max_tokens = request.sampling.max_tokens
            self._kv.admission.note_end(sequence.num_output, output.finish_reason, max_tokens)
            self._close(sequence, state)

    def _finish_reason(self, sequence: Sequence, request: EngineRequest, token_id: int) -> FinishReason | None:
        params, info = request.sampling, self._context.info
        is_eos = token_id in info.eos_token_ids
        if params.grammar is not None and is_eos:
            return FinishReason.STOP  # the mask allowed it
        ends = is_eos and not params.ignore_eos
        if (ends or token_id in params.stop_token_ids) and sequence.num_output > params.min_tokens:
            return FinishReason.STOP
        if sequence.grammar is not None and sequence.grammar.is_over:
            return FinishReason.GRAMMAR
        if sequence.num_output >= params.max_tokens or len(sequence.tokens) >= info.max_model_len:
            return FinishReason.LENGTH
        return None

    def finish(self, sequence: Sequence, reason: FinishReason, result: StepResult) -> None:
        """End a choice between tokens."""
        state = sequence.request
        assert state is not None
        output = ChoiceOutput(state.key, sequence.choice, sequence.num_output, [], finish_reason=reason)
        result.outputs.append(output)
        self._close(sequence, state)

    def _close(self, sequence: Sequence, state: RequestState) -> None:
        self._context.scheduler.remove(sequence)
        del state.sequences[sequence.choice]
        if not state.num_open_choices:
            del self._states[state.key]


def _prompt_targets(state: RequestState, start: int, count: int) -> PromptTargets | None:
    """Prompt tokens predicted by positions [start, start + count) whose log probabilities are still wanted."""
    if not state.num_unscored_tokens:
        return None
    begin = max(start, len(state.prompt_logprobs))
    token_ids = state.request.prompt_ids[begin + 1 : start + count + 1]
    num_top = state.request.sampling.num_prompt_logprobs or 0
    return PromptTargets(begin - start, token_ids, num_top) if token_ids else None


def _sample_spec(sequence: Sequence, state: RequestState) -> SampleSpec:
    request = state.request
    num_prompt, position = len(request.prompt_ids), len(sequence.tokens) + sequence.num_unknown
    return SampleSpec(
        key=request.key,
        choice=sequence.choice,
        seed=request.seed,
        position=position,
        params=request.sampling,
        prompt_ids=request.prompt_ids,
        output_ids=tuple(sequence.tokens[num_prompt:]) if state.needs_output_ids else (),
        num_output_tokens=position - num_prompt,
    )


def _after_drafts(first: SampleSpec, drafts: tuple[int, ...]) -> SampleSpec:
    """The place after ``drafts``, as it is once the target has drawn them all from ``first`` on."""
    return dataclasses.replace(
        first,
        position=first.position + len(drafts),
        output_ids=first.output_ids + drafts if first.params.needs_output_ids else (),
        num_output_tokens=first.num_output_tokens + len(drafts),
        num_drafted=len(drafts),
    )
