"""Adapters of a step as the C++ pass takes them: addresses of their products, and which rows use whose."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from stratos.engine.layers.linear import Linear
from stratos.engine.layers.native_linear import NativeProduct
from stratos.engine.lora.batch import LoraBatch, LoraGroup
from stratos.engine.lora.weights import GROUPS, LoraLayer, LoraWeights
from stratos.engine.native.structures import SEGMENT_ROWS, AdapterPart, AdaptersOfStep, TargetOfAdapter


@dataclass(frozen=True, slots=True)
class _AdapterParts:
    array: ctypes.Array[AdapterPart]
    """[layers * fused layers], in the order of ``GROUPS``."""
    has_bias: bool


class NativeAdapters:
    """Makes the argument of a step; keeps no adapter.

    Args:
        num_layers: of the model.
        dtype: of its rows.
    """

    def __init__(self, num_layers: int, dtype: torch.dtype) -> None:
        self._num_parts, self._dtype = num_layers * len(GROUPS), dtype
        self._parts: WeakKeyDictionary[LoraWeights, _AdapterParts] = WeakKeyDictionary()
        self._shrunk = torch.empty(0, dtype=dtype)
        self._segments = np.empty((0, 3), dtype=np.int64)

    def takes(self, batch: LoraBatch) -> bool:
        """Each adapter's tokens lie together."""
        return all(isinstance(group.tokens, slice) for group in batch.groups)

    def step(self, batch: LoraBatch, num_tokens: int) -> AdaptersOfStep:
        """The argument of a step of ``num_tokens``; valid until the next one, while the batch is."""
        parts = [self._parts_of(group.weights) for group in batch.groups]
        self._segments = _segments(batch.groups, [part.array for part in parts])
        stride = max(group.weights.max_ranks for group in batch.groups)
        stride += stride % 2
        if self._shrunk.numel() < num_tokens * stride:
            self._shrunk = torch.empty(num_tokens * stride, dtype=self._dtype)
        return AdaptersOfStep(
            segments=self._segments.ctypes.data,
            shrunk=self._shrunk.data_ptr(),
            num_segments=len(self._segments),
            stride=stride,
            has_bias=any(part.has_bias for part in parts),
        )

    def _parts_of(self, weights: LoraWeights) -> _AdapterParts:
        found = self._parts.get(weights)
        if found is None:
            array, fused = (AdapterPart * self._num_parts)(), list(GROUPS)
            for (name, layer), part in weights.layers.items():
                array[layer * len(fused) + fused.index(name)] = _part(part)
            has_bias = any(part.bias is not None for part in weights.layers.values())
            found = self._parts[weights] = _AdapterParts(array, has_bias)
        return found


def _segments(groups: Sequence[LoraGroup], parts: Sequence[ctypes.Array[AdapterPart]]) -> np.ndarray:
    """int64 [segments, 3] as of ``AdaptersOfStep``."""
    rows = []
    for group, array in zip(groups, parts, strict=True):
        assert isinstance(group.tokens, slice)
        address, begin, end = ctypes.addressof(array), group.tokens.start, group.tokens.stop
        rows += [(address, first, min(SEGMENT_ROWS, end - first)) for first in range(begin, end, SEGMENT_ROWS)]
    return np.array(rows, dtype=np.int64)


def _part(layer: LoraLayer) -> AdapterPart:
    part = AdapterPart(
        shrink=None if layer.shrink is None else _address(layer.shrink),
        bias=None if layer.bias is None else _row_address(layer.bias),
        num_targets=len(layer.targets),
    )
    for index, target in enumerate(layer.targets):
        part.targets[index] = TargetOfAdapter(_address(target.expand), target.out.start, target.ranks.start)
    return part


def _address(linear: Linear) -> int:
    assert isinstance(linear, NativeProduct)
    return ctypes.addressof(linear.argument)


def _row_address(row: Tensor) -> int:
    assert row.is_contiguous()
    return row.data_ptr()
