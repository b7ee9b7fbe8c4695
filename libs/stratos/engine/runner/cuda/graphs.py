"""Captured decode steps: one graph per padded batch size, from the largest to the smallest, in one memory pool.

A graph replays kernels with the pointers that it was captured with, so everything it reads lies in buffers that are
allocated once.  A batch runs in the smallest graph that holds it; the rows after it are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

SMALL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128)
LARGE_STEP = 32
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class DecodeOutputs:
    """Results of one decode step, padding included."""

    logits: Tensor
    """float32 [rows, vocab]; steps of all sizes may share the memory."""
    is_bad: Tensor
    """Bool [rows]: the hidden state is not finite."""


class Capture(Protocol):
    """Turns work into something that can be replayed."""

    def __call__(self, work: Callable[[], DecodeOutputs]) -> tuple[Callable[[], object], DecodeOutputs]:
        """Returns what replays ``work``, and the tensors that hold its results after each replay."""


class CudaCapture:
    """Captures into CUDA graphs that share one pool."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], DecodeOutputs]) -> tuple[Callable[[], object], DecodeOutputs]:
        """Runs ``work`` before, so that nothing is compiled or tuned while capturing."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # calls of other threads of the process into CUDA do not spoil the capture
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = work()
        self._pool = self._pool or graph.pool()
        return graph.replay, outputs


def padded_sizes(largest: int) -> list[int]:
    """Batch sizes that get a graph, ascending; the last is ``largest``."""
    sizes = [*SMALL_SIZES, *range(SMALL_SIZES[-1] + LARGE_STEP, largest, LARGE_STEP)]
    return [*(size for size in sizes if size < largest), largest]


class DecodeGraphs:
    """Runs decode steps of any size up to the largest.

    Args:
        run: computes a step of that many rows over static buffers.
        largest: rows of the largest step.
        capture: how steps are captured; ``None`` runs them as they are.
        pad: puts inputs of padding alone into the static buffers, before a size is captured.
    """

    def __init__(
        self,
        run: Callable[[int], DecodeOutputs],
        largest: int,
        capture: Capture | None,
        pad: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._run, self.sizes = run, padded_sizes(largest)
        self._replays: dict[int, tuple[Callable[[], object], DecodeOutputs]] = {}
        if capture is not None:
            for size in reversed(self.sizes):
                pad(size)
                self._replays[size] = capture(lambda size=size: run(size))  # type: ignore[misc]

    @property
    def captured(self) -> tuple[int, ...]:
        """Sizes that are replayed; the others run as they are."""
        return tuple(self._replays)

    def padded(self, num_rows: int) -> int:
        """Rows of the step that holds ``num_rows``."""
        return next(size for size in self.sizes if size >= num_rows)

    def step(self, size: int) -> DecodeOutputs:
        """Enqueue a step of a padded size; the next step overwrites its results."""
        if size not in self._replays:
            return self._run(size)
        replay, outputs = self._replays[size]
        replay()
        return outputs
