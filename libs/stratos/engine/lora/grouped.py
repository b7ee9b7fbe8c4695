"""Adapters of a step by grouped kernels: a table of addresses on the device, by slot, layer and fused linear layer.

    load     (store)   an adapter's matrices lie on the device
    place              its addresses go into a slot of the table, with the first step that uses it
    segments           which tokens of a step use which slot
    add                two launches per fused layer, for all adapters of the step at once

Captured decode steps read the same table and segments, so they hold for any adapters.  An address in the table is
followed only for slots that a segment names, and those are resident: a stale entry harms nothing.  A slot's entry is
written by a copy in the order of the steps, so steps launched before still see what they were launched with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.checkpoint.model_config import DecoderConfig
from stratos.engine.layers.linear import Linear
from stratos.engine.lora.batch import LoraBatch, LoraGroup, StepLora
from stratos.engine.lora.weights import GROUPS, LoraLayer, LoraWeights
from stratos.engine.memory.copies import to_device
from stratos.engine.triton_kernels import lora

FUSED = tuple(GROUPS)
SEGMENT_FIELDS = 4


class GroupedAdapters:
    """The table, and static segments of captured decode steps.

    Args:
        config: of the base model.
        capacity: adapters that may be resident at once.
        max_batch: rows of the largest captured decode step.
        device: where everything is.
    """

    def __init__(self, config: DecoderConfig, capacity: int, max_batch: int, device: torch.device) -> None:
        self._config, self._device = config, device
        self._ends = {(name, layer): _ends(config, name, layer) for name in FUSED for layer in range(config.num_layers)}
        shape = (capacity, config.num_layers, len(FUSED), lora.ENTRY)
        self.table = torch.zeros(shape, dtype=torch.int64, device=device)
        self._slots: dict[int, LoraWeights] = {}
        self.static = StepAdapters(
            self, torch.zeros(max_batch, SEGMENT_FIELDS, dtype=torch.int32, device=device), max_batch
        )
        """Segments of captured decode steps; filled by ``fill``."""

    def fits(self, group: LoraGroup) -> bool:
        """The kernels can take this adapter: its tokens lie together, and it has not too many ranks."""
        return isinstance(group.tokens, slice) and group.weights.max_ranks <= lora.MAX_RANKS

    def step(self, groups: Sequence[LoraGroup], num_tokens: int) -> StepLora:
        """Adapters of an eager step; those that the kernels cannot take are added one by one beside the others."""
        fitting = [group for group in groups if self.fits(group)]
        others = LoraBatch(tuple(group for group in groups if not self.fits(group)))
        if not fitting:
            return others
        together = StepAdapters(self, to_device(self.segments(fitting), self._device), num_tokens)
        return MixedAdapters(together, others) if others.groups else together

    def fill(self, groups: Sequence[LoraGroup], size: int) -> None:
        """Enqueue the segments of a captured decode step of ``size`` rows, and entries that the table lacks."""
        segments = np.zeros((size, SEGMENT_FIELDS), dtype=np.int32)
        found = self.segments(groups)
        segments[: len(found)] = found
        self.static.segments[:size].copy_(to_device(segments, self._device))

    def segments(self, groups: Sequence[LoraGroup]) -> np.ndarray:
        """int32 [segments, 4] as of ``triton_kernels.lora``; gives slots to adapters that have none."""
        rows = []
        slots = self._places([group.weights for group in groups])
        for group, slot in zip(groups, slots, strict=True):
            assert isinstance(group.tokens, slice)
            begin, end = group.tokens.start, group.tokens.stop
            rows += [(slot, first, min(lora.ROWS, end - first), 0) for first in range(begin, end, lora.ROWS)]
        return np.array(rows, dtype=np.int32).reshape(-1, SEGMENT_FIELDS)

    def _places(self, adapters: Sequence[LoraWeights]) -> list[int]:
        by_adapter = {id(kept): slot for slot, kept in self._slots.items()}
        needed = {id(adapter) for adapter in adapters}
        free = [slot for slot in range(self.table.shape[0]) if id(self._slots.get(slot)) not in needed]
        # slots that hold nothing first; then any that this step does not use
        free.sort(key=lambda slot: slot in self._slots, reverse=True)
        for adapter in adapters:
            if id(adapter) not in by_adapter:
                self._slots = {slot: kept for slot, kept in self._slots.items() if kept.digest != adapter.digest}
                slot = free.pop()
                self.table[slot].copy_(to_device(self._entries(adapter), self._device))
                self._slots[slot] = adapter
                by_adapter[id(adapter)] = slot
        return [by_adapter[id(adapter)] for adapter in adapters]

    @property
    def holds_any(self) -> bool:
        """Adapters are kept here, resident or not."""
        return bool(self._slots)

    def warm_up(self, dtype: torch.dtype) -> None:
        """Compile the kernels of every fused layer's shape, for inputs of ``dtype``; adds nothing."""
        segments = torch.zeros(1, SEGMENT_FIELDS, dtype=torch.int32, device=self._device)
        step, shapes = StepAdapters(self, segments, 1), set()
        for (name, layer), ends in self._ends.items():
            if not ends:
                continue
            sizes = self._config.projection_shapes(layer)
            num_in = next(sizes[projection][1] for projection in GROUPS[name] if projection in sizes)
            if (num_in, ends) not in shapes:
                shapes.add((num_in, ends))
                x, out = (torch.zeros(1, size, dtype=dtype, device=self._device) for size in (num_in, ends[-1]))
                step.add(name, layer, x, out)

    def forget_all_but(self, digests: Sequence[str]) -> None:
        """Let go of adapters that are not resident any more."""
        resident = set(digests)
        self._slots = {slot: kept for slot, kept in self._slots.items() if kept.digest in resident}

    def _entries(self, adapter: LoraWeights) -> np.ndarray:
        entries = np.zeros(self.table.shape[1:], dtype=np.int64)
        for (name, layer), part in adapter.layers.items():
            entries[layer, FUSED.index(name)] = _entry(part, self._ends[name, layer])
        return entries

    def ends(self, name: str, layer: int) -> tuple[int, ...]:
        """Where the outputs of each projection of a fused layer end."""
        return self._ends[name, layer]


class StepAdapters:
    """The adapters of one step, added by two launches per fused layer."""

    def __init__(self, adapters: GroupedAdapters, segments: Tensor, num_tokens: int) -> None:
        self._adapters, self.segments = adapters, segments
        self._shrunk = lora.scratch(num_tokens, segments.device)

    def add(self, fused: str, layer: int, x: Tensor, out: Tensor) -> None:
        """Add the adapters' products to ``out``."""
        ends = self._adapters.ends(fused, layer)
        if ends:
            table = self._adapters.table[:, layer, FUSED.index(fused)]
            # of the static segments as many as there are rows: no step has more
            segments = self.segments[: out.shape[0]]
            lora.add_adapters(out, x.contiguous(), table, segments, ends, self._shrunk)


@dataclass(frozen=True, slots=True)
class MixedAdapters:
    """Adapters of one step, some by the kernels and some one by one: each token has one adapter at most."""

    together: StepAdapters
    others: LoraBatch

    def add(self, fused: str, layer: int, x: Tensor, out: Tensor) -> None:
        """Add one adapter's products to ``out``."""
        self.together.add(fused, layer, x, out)
        self.others.add(fused, layer, x, out)


def _ends(config: DecoderConfig, name: str, layer: int) -> tuple[int, ...]:
    sizes = {projection: shape[0] for projection, shape in config.projection_shapes(layer).items()}
    return tuple(np.cumsum([sizes[projection] for projection in GROUPS[name] if projection in sizes]).tolist())


def _entry(part: LoraLayer, ends: tuple[int, ...]) -> np.ndarray:
    entry = np.zeros(lora.ENTRY, dtype=np.int64)
    if part.shrink is not None:
        entry[:2] = _weight(part.shrink).data_ptr(), part.num_ranks
    if part.bias is not None:
        entry[2] = part.bias.data_ptr()
    for target in part.targets:
        place = 4 + 4 * ends.index(target.out.stop)
        rank = target.ranks.stop - target.ranks.start
        entry[place : place + 3] = _weight(target.expand).data_ptr(), rank, target.ranks.start
    return entry


def _weight(linear: Linear) -> Tensor:
    weight = linear.weight  # type: ignore[attr-defined]  # of the linear layers of a GPU, all of which keep one
    assert isinstance(weight, Tensor)
    assert weight.is_contiguous()
    return weight
