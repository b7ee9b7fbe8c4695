"""The KV admission rule: ``blocks(prompt) + blocks(budget) + taken <= watermark * total``.

``budget = min(max_tokens, p90 output length of the model so far)``, at least one block.  A request that
emitted tokens must get back in: it asks for one block of output and may fill the whole pool; the engine preempts if
that was too much.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from stratos.core.placement import PlacementRequest, Work
from stratos.core.quantile import RecentQuantile
from stratos.routing.settings import AdmissionConfig
from stratos.routing.worker_view import WorkerView

MAX_MODELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request with what it is allowed to take."""

    request: PlacementRequest
    output_tokens: int
    """Expected output of one choice."""
    kv_watermark: float
    max_waiting_per_worker: int
    closed: frozenset[str] = frozenset()
    """Incarnations whose room is kept for other requests."""

    def num_blocks(self, block_size: int) -> int:
        """KV blocks it may come to hold: the prompt once, and each choice's output."""
        prompt = math.ceil(self.request.num_prompt_tokens / block_size)
        return prompt + max(1, self.request.num_choices) * max(1, math.ceil(self.output_tokens / block_size))

    def never_fits(self, view: WorkerView) -> bool:
        """Not even an empty worker of this size could take it."""
        return self.num_blocks(view.status.block_size) > self.kv_watermark * view.status.blocks.total

    @property
    def num_slots(self) -> int:
        """Batch slots that it wants at once."""
        return 1 if self.request.work is Work.EMBEDDING else max(1, self.request.num_choices)

    def num_blocks_short(self, view: WorkerView) -> float:
        """Blocks that have to get free before admission holds; it holds at 0 and below."""
        need = self.num_blocks(view.status.block_size)
        return need + view.num_used_blocks - self.kv_watermark * view.status.blocks.total

    def num_slots_short(self, view: WorkerView) -> int:
        """Sequences that have to end before the worker's batch, and its short queue, have room; 0 and below is room.

        A request with more choices than the batch has slots starts as many as there are.  Inputs to embed are
        independent of one another: a group starts with the first of them.
        """
        max_num_seqs = view.status.max_num_seqs
        if max_num_seqs == 0 or view.num_seqs == 0:
            return 0
        return view.num_seqs + min(self.num_slots, max_num_seqs) - max_num_seqs - self.max_waiting_per_worker


class OutputLengths:
    """Recent output lengths per model, for the p90 in the budget."""

    def __init__(self, default_tokens: int) -> None:
        self._default_tokens = default_tokens
        self._by_model: OrderedDict[str, RecentQuantile] = OrderedDict()

    def add(self, model_digest: str, num_tokens: int) -> None:
        """Record the output length of one ended choice."""
        if model_digest not in self._by_model:
            self._by_model[model_digest] = RecentQuantile(0.9, default=self._default_tokens)
        self._by_model[model_digest].add(num_tokens)
        self._by_model.move_to_end(model_digest)
        if len(self._by_model) > MAX_MODELS:
            self._by_model.popitem(last=False)

    def p90(self, model_digest: str) -> int:
        """90th percentile of the recent lengths, or the default before there are enough."""
        lengths = self._by_model.get(model_digest)
        return self._default_tokens if lengths is None else lengths.value


def make_ask(request: PlacementRequest, lengths: OutputLengths, settings: AdmissionConfig) -> Ask:
    """What a request is allowed to take now."""
    per_choice = math.ceil(request.max_tokens / max(1, request.num_choices))
    return Ask(
        request=request,
        output_tokens=1 if request.is_return else min(per_choice, lengths.p90(request.model_digest)),
        kv_watermark=1.0 if request.is_return else settings.kv_watermark,
        max_waiting_per_worker=settings.max_waiting_per_worker,
    )
