"""Copies of KV and states between an engine and the frames of hand-offs, from any thread, beside the steps.

What a copy touches is fenced, or held, until the copy returns: whatever ends in the meantime, nothing else gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Series
from contextlib import AbstractContextManager, contextmanager

from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.contract.runner import Runner
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.requests.prefill_jobs import PrefillJobTable
from stratos.engine.requests.reservations import ReservationTable


class KvCopies:
    """Copies of one engine.

    Args:
        runner: copies.
        kv: fences.
        jobs: whose KV leaves.
        reservations: into which KV comes.
        changing: held while state changes.
    """

    def __init__(
        self,
        runner: Runner,
        kv: KvCache,
        jobs: PrefillJobTable,
        reservations: ReservationTable,
        changing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runner, self._kv, self._jobs, self._reservations = runner, kv, jobs, reservations
        self._changing, self._geometry = changing, runner.info.geometry

    def scatter(self, key: RequestKey, kv_range: KvRange, payload: memoryview) -> None:
        """Write received KV into reserved blocks; an abort during the call leaves them fenced until it returns.

        Raises:
            KeyError: no such reservation (it was aborted or committed).
            ValueError: the range is outside of the reservation, or the payload has the wrong size.
        """
        if self._geometry.is_state(kv_range):
            with self._writing_state(key, kv_range) as slot:
                self._runner.scatter_state(slot, kv_range, payload)
            return
        with self._writing(key, kv_range) as table:
            self._runner.scatter(table, kv_range, payload)

    def unpack(self, key: RequestKey, kv_range: KvRange, payload: DevicePayload) -> int:
        """``scatter`` from the device's memory; returns the checksum of what was written. Raises likewise."""
        with self._writing(key, kv_range) as table:
            return self._runner.unpack(table, kv_range, payload)

    def _writing(self, key: RequestKey, kv_range: KvRange) -> AbstractContextManager[Series[int]]:
        def found() -> tuple[Series[int], Series[int]]:
            state = self._reservations.check_range(key, kv_range)
            return state.block_table, state.reserved_blocks

        return self._fenced(found)

    def _writing_state(self, key: RequestKey, kv_range: KvRange) -> AbstractContextManager[int]:
        def found() -> int:
            held = self._reservations.check_range(key, kv_range).states
            assert held is not None, "the model has states"
            return held.own[0]

        return self._holding(found)

    def gather(self, leg: str, kv_range: KvRange) -> memoryview:
        """Read computed KV of a job in wire layout. Raises ``KeyError`` for an unknown leg."""
        if self._geometry.is_state(kv_range):
            with self._reading_state(leg, kv_range) as slot:
                return self._runner.gather_state(slot, kv_range)
        with self._reading(leg, kv_range) as table:
            return self._runner.gather(table, kv_range)

    def pack(self, leg: str, kv_range: KvRange) -> tuple[DevicePayload, int]:
        """``gather`` into the device's memory, with the checksum. Raises likewise."""
        with self._reading(leg, kv_range) as table:
            return self._runner.pack(table, kv_range)

    def _reading(self, leg: str, kv_range: KvRange) -> AbstractContextManager[Series[int]]:
        def found() -> tuple[Series[int], Series[int]]:
            state = self._jobs[leg]
            if not 0 <= kv_range.token_begin < kv_range.token_end <= state.num_available:
                raise ValueError(f"{kv_range} is not computed yet")
            table = list(state.sequence.block_table)
            return table, table

        return self._fenced(found)

    def _reading_state(self, leg: str, kv_range: KvRange) -> AbstractContextManager[int]:
        def found() -> int:
            state = self._jobs[leg]
            held = state.sequence.states
            if held is None or kv_range.token_end != state.num_available:
                raise ValueError(f"the state of {kv_range} is not there")
            return held.current

        return self._holding(found)

    @contextmanager
    def _fenced(self, found: Callable[[], tuple[Series[int], Series[int]]]) -> Iterator[Series[int]]:
        """Fence blocks during a copy; gives the pages of a table, which is ``found`` together with the blocks."""
        with self._changing():
            table, blocks = found()
            self._kv.blocks.fence(blocks)
            pages = self._kv.blocks.page_ids(table)
        try:
            yield pages
        finally:
            with self._changing():
                self._kv.blocks.unfence(blocks)

    @contextmanager
    def _holding(self, found: Callable[[], int]) -> Iterator[int]:
        """Hold the slot of a state during a copy."""
        with self._changing():
            slot = found()
            self._kv.hold_slot(slot)
        try:
            yield slot
        finally:
            with self._changing():
                self._kv.release_slot(slot)
