"""Hand-offs at the receiver that are not committed: prefix referenced, blocks reserved, places in the batch held."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from stratos.common.errors import Busy
from stratos.core.kv import KvRange
from stratos.core.requests.records import EngineRequest, RequestKey
from stratos.engine.contract.results import BlockReservation
from stratos.engine.contract.states import HeldStates
from stratos.engine.requests.context import EngineContext
from stratos.engine.sequence import ReservedState


class ReservationTable:
    """Reservations by request."""

    def __init__(self, context: EngineContext) -> None:
        self._context, self._kv = context, context.kv
        self._states: dict[RequestKey, ReservedState] = {}

    def __contains__(self, key: RequestKey) -> bool:
        return key in self._states

    @property
    def open(self) -> tuple[RequestKey, ...]:
        return tuple(self._states)

    def reserve(self, request: EngineRequest) -> BlockReservation | None:
        """Take everything a hand-off needs, or nothing."""
        context, blocks = self._context, self._kv.blocks
        num_choices = sum(not choice.finished for choice in request.choices)
        # more choices than a full batch wait until the first ones end
        num_batch_slots = min(num_choices, context.scheduler.config.max_batch_slots)
        if context.scheduler.num_free_seqs < num_batch_slots or not context.scheduler.is_admitting:
            return None
        if context.scheduler.must_yield(request):
            self._kv.admission.num_refusals += 1
            return None
        token_ids = context.info.handed_ids(request)
        hashes = context.prompt_hashes(token_ids, request.terms.adapter.digest, request.terms.cache_salt)
        prefix = blocks.match(hashes)
        num_tokens = len(token_ids) - 1
        num_blocks = self._kv.admission.table_blocks(num_tokens)
        scheduler = context.scheduler
        num_budgeted = scheduler.num_unused_budget_blocks
        if not self._kv.admission.admits_request(request, prefix, num_tokens, num_budgeted):
            return None
        states = None
        if self._kv.states is not None and (states := self._kv.states.take(hashes[: len(prefix)])) is None:
            self._kv.admission.num_refusals += 1
            return None
        blocks.reference(prefix)
        missing = num_blocks - len(prefix)
        if blocks.num_available < missing:
            blocks.release(prefix)
            self._release(states)
            return None
        loaded = self._load(hashes[len(prefix) :])
        reserved = blocks.allocate(missing - len(loaded), reserved=True)
        assert reserved is not None
        prefix += loaded
        skip = len(prefix) * blocks.block_size
        self._states[request.key] = state = ReservedState(
            request, hashes, prefix, reserved, skip, num_tokens, num_batch_slots, states=states
        )
        state.num_output_blocks = self._output_blocks(state, num_choices)
        scheduler.num_reserved_seqs += num_batch_slots
        scheduler.num_reserved_output_blocks += state.num_output_blocks
        return BlockReservation(key=request.key, num_skip_tokens=skip, num_tokens=num_tokens)

    def _output_blocks(self, state: ReservedState, num_choices: int) -> int:
        admission = self._kv.admission
        tail = admission.tail_blocks(state.request, state.num_tokens)
        return admission.output_blocks(state.request, num_choices) + tail

    def _load(self, hashes: list[bytes]) -> list[int]:
        """Blocks that the next plan fills from host memory; there is room for them."""
        tier = self._kv.tier
        slots = tier.match(hashes, may_wait=False)
        taken = self._kv.blocks.allocate(len(slots))
        assert taken is not None
        tier.load(slots, taken, hashes)
        return taken

    def check_range(self, key: RequestKey, kv_range: KvRange) -> ReservedState:
        """The reservation, if the range lies inside of what it still expects."""
        state, geometry = self._states[key], self._context.info.geometry
        if geometry.is_state(kv_range):
            if kv_range.token_end != state.num_tokens or state.num_skip_tokens == state.num_tokens:
                raise ValueError(f"{kv_range} is not the state at the end of the reservation")
            return state
        if not state.num_skip_tokens <= kv_range.token_begin < kv_range.token_end <= state.num_tokens:
            raise ValueError(f"the tokens of {kv_range} are outside of the reservation")
        if not 0 <= kv_range.layer_begin < kv_range.layer_end <= geometry.num_layers:
            raise ValueError(f"this model has no such layers: {kv_range}")
        return state

    def note_damaged(self, bad: Set[int]) -> None:
        """These blocks came damaged from host memory: a hand-off that begins with them ends in vain."""
        for state in self._states.values():
            state.is_damaged |= not bad.isdisjoint(state.prefix_blocks)

    def commit(self, key: RequestKey) -> ReservedState:
        """End a reservation; its blocks are allocated now and belong to the caller.

        Raises:
            Busy: its prefix is damaged; the blocks are given back.
        """
        state = self._remove(key)
        if state.is_damaged:
            self._give_back(state)
            raise Busy("KV that was loaded from host memory was damaged; ask for a new placement")
        self._kv.blocks.publish(state.reserved_blocks)
        return state

    def take_part(self, key: RequestKey) -> ReservedState | None:
        """End a reservation of which only a part came; its blocks are allocated now and belong to the caller.

        ``None`` for an unknown key, for a damaged prefix, or where a scatter still writes: the blocks are given back.
        """
        if key not in self._states:
            return None
        state, blocks = self._remove(key), self._kv.blocks
        if state.is_damaged or blocks.has_fence(state.reserved_blocks):
            self._give_back(state)
            return None
        blocks.publish(state.reserved_blocks)
        return state

    def drop(self, key: RequestKey) -> None:
        """End a reservation and give everything back; what a scatter still writes stays fenced until it returns."""
        self._give_back(self._remove(key))

    def _give_back(self, state: ReservedState) -> None:
        self._kv.blocks.release(state.block_table)
        self._release(state.states)

    def _release(self, states: HeldStates | None) -> None:
        if states is not None and self._kv.states is not None:
            self._kv.states.pool.release(states.slots)

    def cancel_choices(self, key: RequestKey, indexes: tuple[int, ...]) -> None:
        """Commit the hand-off without some choices; drop it when none is left."""
        state, scheduler = self._states[key], self._context.scheduler
        choices = tuple(
            dataclasses.replace(choice, finished=choice.finished or choice.index in indexes)
            for choice in state.request.choices
        )
        num_choices = sum(not choice.finished for choice in choices)
        if not num_choices:
            self.drop(key)
            return
        state.request = dataclasses.replace(state.request, choices=choices)
        num_output_blocks = self._output_blocks(state, num_choices)
        num_batch_slots = min(num_choices, scheduler.config.max_batch_slots)
        scheduler.num_reserved_seqs += num_batch_slots - state.num_batch_slots
        scheduler.num_reserved_output_blocks += num_output_blocks - state.num_output_blocks
        state.num_batch_slots, state.num_output_blocks = num_batch_slots, num_output_blocks

    def _remove(self, key: RequestKey) -> ReservedState:
        state = self._states.pop(key)
        self._context.scheduler.num_reserved_seqs -= state.num_batch_slots
        self._context.scheduler.num_reserved_output_blocks -= state.num_output_blocks
        return state
