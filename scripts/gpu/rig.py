"""Rig that sections share: the device, timing, the bandwidth that every roofline is measured against, results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

Work = Callable[[], object]


@dataclass
class Rig:
    """One section's run.

    ``is_rehearsal`` runs everything on a CPU in tiny shapes: it proves that the code runs, its times mean nothing.
    """

    path: Path
    is_rehearsal: bool
    deadline_s: float
    """By ``time.monotonic``; sections leave out what no longer fits."""
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return torch.device("cpu" if self.is_rehearsal else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights; the interpreter of the rehearsal knows float32 best."""
        return torch.float32 if self.is_rehearsal else torch.bfloat16

    def record(self, name: str, value: Any) -> None:
        """Keep a result, at once on disk: what comes later may take the process down."""
        self.results[name] = value
        self.path.write_text(json.dumps(self.results))
        print(f"{name}: {json.dumps(value)}", flush=True)

    def attempt(self, name: str, work: Callable[[], Any]) -> None:
        """Record what ``work`` returns, or why it failed; nothing when time is up."""
        if time.monotonic() > self.deadline_s:
            self.record(name, {"skipped": "no time left"})
            return
        try:
            self.record(name, work())
        except OutOfResources as error:
            # a program shape that this device cannot run is a result of a sweep, not a fault
            self.record(name, {"does_not_fit": str(error)[:200]})
        except Exception as error:
            self.record(name, {"error": f"{type(error).__name__}: {error}"[:600]})
            if "CUDA" in str(error) and "out of memory" not in str(error):
                raise  # the device's state is lost, nothing else can be measured in this process

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.is_rehearsal:
            torch.cuda.synchronize()

    def seconds(self, works: list[Work], repeats: int = 5) -> float:
        """Seconds of one ``work``, the best of several replays of a graph that runs all of ``works`` once.

        Different works touch different memory, so that the cache does not answer; a graph hides the launches.
        """
        for work in works[:1] * 2:
            work()
        if self.is_rehearsal:
            begin = time.perf_counter()
            works[0]()
            return time.perf_counter() - begin
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work()
        return self.event_seconds(graph.replay, repeats) / len(works)

    def event_seconds(self, work: Work, repeats: int = 5) -> float:
        """Seconds of ``work`` on the device's clock, the best of several."""
        if self.is_rehearsal:
            begin_s = time.perf_counter()
            work()
            return time.perf_counter() - begin_s
        work()
        best = float("inf")
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1e3)
        return best

    def copy_bandwidth(self) -> float:
        """Bytes per second of a large copy, read and written bytes both counted."""
        num_bytes = 1 << (16 if self.is_rehearsal else 32)
        source = torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * num_bytes / self.event_seconds(lambda: target.copy_(source), 10)
