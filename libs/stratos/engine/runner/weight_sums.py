"""Checksums of all memory that a model's steps only read: packed weights, scales, norms, embedding, rotary tables.

What is read are the tensors that the layers hold, not the files that they came from.  The first pass takes note, every
later one compares; a CRC of 32 bits changes with every flipped bit, and with every run of flipped bits up to 32.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from stratos.engine.contract.results import WeightCheck

PIECE_BYTES = 1 << 20
_OURS = "stratos.engine."


class WeightSums:
    """One thread's. A piece that has changed is named once, and stays noted as it was.

    Args:
        roots: by name, objects whose tensors no step writes.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._pieces = [piece for name, root in roots.items() for piece in _pieces(name, root)]
        self._sums: list[int] = []
        self._next = self._num_passes = 0
        self._damaged: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """All that a pass reads."""
        return sum(size for _, _, _, size in self._pieces)

    def check(self, max_bytes: int) -> WeightCheck:
        """Read the next pieces, up to ``max_bytes`` of them but at least one, and at most to the end of the pass."""
        num_bytes, damaged = 0, list[str]()
        for name, tensor, begin, size in self._pieces[self._next :]:
            if num_bytes and num_bytes + size > max_bytes:
                break
            found = zlib.crc32(_memory(tensor)[begin : begin + size])
            if not self._num_passes:
                self._sums.append(found)
            elif found != self._sums[self._next] and name not in self._damaged:
                self._damaged.add(name)
                damaged.append(name)
            num_bytes += size
            self._next = (self._next + 1) % len(self._pieces)
            self._num_passes += self._next == 0
        return WeightCheck(num_bytes=num_bytes, num_passes=self._num_passes, damaged=tuple(damaged))


def _pieces(root_name: str, root: object) -> Iterator[tuple[str, Tensor, int, int]]:
    """Name, tensor, begin and size in bytes; memory that two tensors share comes once."""
    seen: set[int] = set()
    for name, tensor in tensors_of(root_name, root):
        memory = _memory(tensor)
        place = id(tensor) if tensor.is_mkldnn else memory.ctypes.data  # what was converted is gone, and its place free
        if not len(memory) or place in seen:
            continue
        seen.add(place)
        # a tensor in a library's own layout is converted to be read: it is one piece
        step = len(memory) if tensor.is_mkldnn else PIECE_BYTES
        for begin in range(0, len(memory), step):
            yield name, tensor, begin, min(step, len(memory) - begin)


def _memory(tensor: Tensor) -> Any:
    """Bytes of all of the storage, uint8 [bytes]."""
    if tensor.is_mkldnn:
        tensor = tensor.to_dense()
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()


def tensors_of(name: str, root: object) -> Iterator[tuple[str, Tensor]]:
    """Tensors that can be reached from ``root`` through our own objects and plain containers, with their paths."""
    seen: set[int] = set()
    waiting = [(name, root)]
    while waiting:
        path, thing = waiting.pop()
        if isinstance(thing, Tensor):
            yield path, thing
        elif id(thing) not in seen:
            seen.add(id(thing))
            waiting += reversed([(f"{path}.{key}", value) for key, value in _parts(thing)])


def _parts(thing: object) -> list[tuple[object, object]]:
    if isinstance(thing, list | tuple):
        return list(enumerate(thing))
    if isinstance(thing, dict):
        return list(thing.items())
    kind = type(thing)
    if not kind.__module__.startswith(_OURS):
        return []
    slots = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
    names = dict.fromkeys([*slots, *getattr(thing, "__dict__", ())])
    return [(name.strip("_"), getattr(thing, name)) for name in names if hasattr(thing, name)]
