"""Admission as a router foresees it: the room that a request needs at a worker, and how much of it is missing.

The rule is the worker's own (``stratos.core.rules.admission``), applied to what the worker reports of itself and to the
placements that its status does not show yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field

from stratos.common.changed import record
from stratos.core.placement import PlacementRequest, Work
from stratos.core.requests.terms import FULL_SHARE, Share
from stratos.core.rules.admission import KvNeed, KvRoom, copied_blocks, exceeds_alone, num_blocks_short, output_blocks
from stratos.routing.worker_view import WorkerView


@record(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request with what it may take now."""

    request: PlacementRequest
    max_waiting_per_worker: int = 0
    """Sequences that a full batch may be given in addition."""
    closed: frozenset[str] = frozenset()
    """Incarnations whose room is kept for other requests, ``clear`` among them once it is tried."""
    clear: frozenset[str] = frozenset()
    """Incarnations that are left to higher classes while another worker could run it."""
    num_slots: int = field(init=False, repr=False, compare=False)
    """Batch slots that it wants at once."""
    barred: frozenset[str] = field(init=False, repr=False, compare=False)
    """Incarnations where only the filters can decide whether it may run."""
    _needs: dict[tuple[int, int], KvNeed] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By block size and p90: most workers of a pool share both, and a decision needs each number twice."""
    _leaving: list[Ask] = field(default_factory=list, init=False, repr=False, compare=False)
    """Last result of ``leaving``: a request is tried many times."""

    def __post_init__(self) -> None:
        request = self.request
        num_slots = 1 if request.work is Work.EMBEDDING else max(1, request.num_choices)
        object.__setattr__(self, "num_slots", num_slots)
        barred = self.closed
        if request.excluded_incarnations or request.refusals:
            barred = barred.union(request.excluded_incarnations, request.refusals)
        object.__setattr__(self, "barred", barred)

    def leaving(self, clear: frozenset[str]) -> Ask:
        """The same request, which leaves some workers to higher classes."""
        if not (self._leaving and self._leaving[0].clear is clear):
            self._leaving[:] = [self._with(self.closed, clear)]
        return self._leaving[0]

    def closing(self, incarnations: frozenset[str]) -> Ask:
        """The same request, to which only these workers are closed."""
        return self if self.closed == incarnations else self._with(incarnations, self.clear)

    def _with(self, closed: frozenset[str], clear: frozenset[str]) -> Ask:
        ask = Ask(request=self.request, max_waiting_per_worker=self.max_waiting_per_worker, closed=closed, clear=clear)
        object.__setattr__(ask, "_needs", self._needs)
        return ask

    def need(self, view: WorkerView) -> KvNeed:
        """KV blocks it may come to hold there: the prompt once, and each choice's output."""
        key = (view.status.block_size, view.status.engine.p90_output_tokens)
        need = self._needs.get(key)
        if need is None:
            need = self._needs[key] = self._need(view)
        return need

    def _need(self, view: WorkerView) -> KvNeed:
        request, status = self.request, view.status
        num_choices = max(1, request.num_choices)
        num_tokens, size = request.num_prompt_tokens, status.block_size
        copied = 0 if request.is_resumed else copied_blocks(num_tokens, num_choices, size)
        return KvNeed(
            table_blocks=math.ceil(request.num_prompt_tokens / status.block_size),
            output_blocks=copied
            + output_blocks(
                math.ceil(request.max_output_tokens_total / num_choices),
                status.engine.p90_output_tokens,
                num_choices,
                status.block_size,
                is_resumed=request.is_resumed,
            ),
            is_resumed=request.is_resumed,
        )

    @property
    def _share(self) -> Share:
        """The part that the plan leaves to others; a stream that has begun gets back in like any other."""
        request = self.request
        return FULL_SHARE if request.is_move or request.is_resumed else request.terms.share

    @property
    def is_share_bound(self) -> bool:
        """It may be refused where another request is taken, at any worker."""
        share = self._share
        return share.max_batch_ratio < 1 or share.kv_headroom_ratio > 0

    def never_fits(self, view: WorkerView) -> bool:
        """Not even an empty worker of this size could take it."""
        need, total = self.need(view), view.status.engine.blocks.total
        return need.num_blocks > total or exceeds_alone(need, total, view.status.engine.kv_watermark)

    def num_blocks_short(self, view: WorkerView) -> float:
        """Blocks that have to get free before admission holds; it holds at 0 and below."""
        need, status = self.need(view), view.status
        room = KvRoom(
            total=status.engine.blocks.total,
            taken=view.num_used_blocks,
            promised=status.engine.num_promised_blocks,
            watermark=self._watermark(view),
        )
        short = num_blocks_short(need, room)
        return short + view.kept_for_other_routers(need.num_blocks + view.fresh.num_blocks - short)

    def num_short(self, view: WorkerView) -> tuple[float, float]:
        """Sequences and blocks that have to get free at a worker that could run it; the last of all where it is out."""
        if not view.is_in:
            return math.inf, math.inf
        return max(0.0, self.num_slots_short(view)), max(0.0, self.num_blocks_short(view))

    def _watermark(self, view: WorkerView) -> float:
        """Up to where the pool may be filled; headroom is not for what would never fit beside it."""
        mark, total = view.status.engine.kv_watermark, view.status.engine.blocks.total
        share = self._share
        below = mark - share.kv_headroom_ratio - share.kept_kv.get(view.status.pool, 0.0)
        return mark if exceeds_alone(self.need(view), total, below) else below

    def surely_fits(self, views: Iterable[WorkerView]) -> list[bool]:
        """Which workers every filter passes.  ``False`` means nothing: there the filters have to be run one by one.

        One call for all workers of a pool, because this is what most of a decision consists of.
        """
        if self.is_share_bound:
            return [False for _ in views]
        request, num_slots, barred, kept_kv = self.request, self.num_slots, self.barred, self._share.kept_kv
        adapter, required = request.terms.adapter.digest, request.required_features
        needs_blocks, need, takes_spot = request.work is not Work.EMBEDDING, self.need, request.takes_spot
        return [
            view.is_in
            and (takes_spot or not view.status.is_spot)
            and num_slots <= view.sure_seqs
            and (not needs_blocks or need(view).num_blocks <= view.sure_blocks)
            and (not barred or view.ref.incarnation not in barred)
            and (not adapter or adapter in view.status.resident_adapters)
            and (not required or required <= view.status.features)
            and (not kept_kv or view.status.pool not in kept_kv)
            for view in views
        ]

    def num_slots_short(self, view: WorkerView) -> float:
        """Sequences that have to end before the worker's batch, and its short queue, have room; 0 and below is room.

        A request with more choices than the batch has slots starts as many as there are.  Inputs to embed are
        independent of one another: a group starts with the first of them.
        """
        max_num_seqs = view.status.max_num_seqs
        if max_num_seqs == 0:
            return 0
        max_num_seqs = max(1, int(max_num_seqs * self._share.max_batch_ratio))
        wanted = min(self.num_slots, max_num_seqs)
        num_waiting = 0 if self.is_share_bound else self.max_waiting_per_worker
        free = max_num_seqs + num_waiting - view.num_seqs + view.fresh.num_seqs
        return wanted + view.fresh.num_seqs - free + view.kept_for_other_routers(free)


def kv_room(view: WorkerView, *, is_resumed: bool) -> float:
    """Whole blocks that the worker can give to one request; infinite for an empty pool, which takes what fits."""
    engine = view.status.engine
    if view.num_used_blocks == 0 and engine.num_promised_blocks == 0:
        return math.inf
    if not is_resumed and view.sure_blocks > -math.inf:
        return view.sure_blocks // 1
    room = kv_capacity(view, is_resumed=is_resumed) - view.num_used_blocks
    if not is_resumed:
        room -= engine.num_promised_blocks
    return math.floor(room - view.kept_for_other_routers(room + view.fresh.num_blocks))


def kv_capacity(view: WorkerView, *, is_resumed: bool) -> float:
    """Blocks up to which admission fills the pool for such a request."""
    engine = view.status.engine
    return engine.blocks.total if is_resumed else engine.kv_watermark * engine.blocks.total


def has_free_slot(view: WorkerView, max_waiting: int) -> bool:
    """The batch, and its short queue of ``max_waiting``, have room for one sequence."""
    if view.sure_seqs >= 1:
        return True
    max_num_seqs = view.status.max_num_seqs
    if max_num_seqs == 0:
        return True
    free = max_num_seqs + max_waiting - view.num_seqs
    return free - view.kept_for_other_routers(free + view.fresh.num_seqs) >= 1
