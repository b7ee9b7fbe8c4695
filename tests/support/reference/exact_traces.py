"""What one sequence got out of a runner, bit by bit: tokens, log probabilities, logits of every one, and its KV."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from stratos.core.kv import KvRange
from stratos.core.requests.records import PositionLogprobs
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.native_kernels import NATIVE_SETS, native_library
from tests.support.worlds.plan_driver import FULL, Driver, Stream

NUM_TOKENS = 5
KERNELS: dict[str, dict[str, Any]] = {
    "best": {},
    "torch": {"native_kernels": False},
    "layered": {"whole_step": False},
    "onednn": {"native_gemm": False},
    "torch-ops": {"fused_ops": False},
    "torch-unpacked": {"native_kernels": False, "prepacked_gemm": False},
    "kv-int8": {"kv_dtype": "int8"},
    "llm-int8": {"quantization": "llm-int8"},
    "int4+head": {"quantization": "int4+head"},
}
BUILDS = [name for name in NATIVE_SETS if name in ("amx-twin", "avx512-bf16")]
"""Builds of the C++ kernels beside the best one: the tiles' sums by vectors, and what serves where tiles are masked."""
INEXACT = {"exact": False, "native_kernels": False, "prepacked_gemm": False}


@contextmanager
def using_build(name: str) -> Iterator[None]:
    """Runners that are loaded take this build of the C++ kernels."""
    library = native_library(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stratos.engine.runner.kernels.load_native", lambda name: library)
        yield


@dataclass(eq=False, repr=False)
class Trace:
    """Megabytes: equality and text are its own, because pytest's explanation of a difference takes minutes."""

    tokens: list[int]
    logprobs: list[PositionLogprobs | None]
    logits: list[bytes]
    kv: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and vars(self) == vars(other)

    def __repr__(self) -> str:
        digests = {name: hashlib.sha256(repr(value).encode()).hexdigest()[:8] for name, value in vars(self).items()}
        return f"Trace(tokens={self.tokens}, {digests})"


@dataclass
class Recorder:
    """Logits of each sampled row by seq_id, in order."""

    logits: dict[int, list[bytes]] = field(default_factory=dict)

    @contextmanager
    def listening(self, runner: TorchRunner) -> Iterator[None]:
        original = runner.sample

        def sample(handle: Any, masks: Any = None) -> None:
            if handle.logits is not None:
                for row, (seq_id, _) in enumerate(handle.inputs.sampled_rows):
                    bits = handle.logits[row].float().view(torch.int32).numpy().tobytes()
                    self.logits.setdefault(seq_id, []).append(bits)
            original(handle, masks)

        runner.sample = sample  # type: ignore[method-assign]
        try:
            yield
        finally:
            runner.sample = original  # type: ignore[method-assign]


def kv_of(runner: TorchRunner, stream: Stream) -> bytes:
    """KV of every computed token, all layers."""
    return bytes(runner.gather(stream.blocks, KvRange(0, stream.num_computed, 0, runner.info.geometry.num_layers)))


def generated(driver: Driver, streams: Sequence[Stream], chunk: int) -> list[Trace]:
    """Run all streams to ``NUM_TOKENS`` tokens in shared batches."""
    recorder = Recorder()
    with recorder.listening(driver.runner):
        driver.generate(streams, NUM_TOKENS, chunk)
    return [
        Trace(
            [t.token_id for t in s.sampled],
            [t.logprobs for t in s.sampled],
            recorder.logits[s.seq_id],
            kv_of(driver.runner, s),
        )
        for s in streams
    ]


def alone(runner: TorchRunner, prompt: Sequence[int], chunk: int = 1 << 20, adapter: str = "") -> Trace:
    """One sequence by itself."""
    driver = Driver(runner, seed=chunk)
    return generated(driver, [driver.stream(prompt, adapter=adapter, params=FULL)], chunk)[0]
