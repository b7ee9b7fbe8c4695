"""Attention over a prompt: scores written out as one matrix against the engine's kernel, in time and bytes.

The standard computation multiplies all queries with all keys, keeps that matrix, and once more as its softmax: bytes
grow with the square of the prompt.  The engine's kernel goes over the keys piece by piece and keeps no scores.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stratos.calculators.formula import Formula
from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.kernels import choose_kernels
from stratos.engine.settings import RunnerConfig
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16
CPU, DTYPE = torch.device("cpu"), torch.float32
LENGTHS = (512, 2048, 4096)
CLAIMED_MS = {512: (100, 80), 2048: (450, 200), 4096: (1800, 500)}
"""Standard attention and FlashAttention, as published."""
SCORES = Formula("score_bytes", "heads * tokens * tokens * element_bytes")
SPEED_UP = Formula("speed_up", "standard_ms / tiled_ms")
CLEAR_PEAK = "5"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCost:
    """One way at one length."""

    ms: float
    peak_bytes: int
    """Memory of this process at its highest over what it was before, in one call that comes after another one."""


def measure(conditions: RowConditions) -> RowResult:
    """Both ways at every length."""
    lengths, repeats = conditions.sized(smoke=((64, 128), 1), short=(LENGTHS, 3), full=(LENGTHS, 7))
    torch.set_num_threads(conditions.threads)
    name = _kernel_name(conditions)
    found = {length: _both(length, repeats, conditions) for length in lengths}
    longest = lengths[-1]
    ratios = {length: ways["standard"].ms / ways["ours"].ms for length, ways in found.items()}
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=exactly("3.9", "scores of 4,096 tokens and 32 heads: 2.1 GB", 2.1e9, "bytes"),
                recomputed=SCORES(heads=32, tokens=4096, element_bytes=4),
            ),
            ClaimAnswer(
                claim=between("3.9", "FlashAttention is 2-4 times as fast", 2, 4, "x"),
                own=_ratio(ratios[longest], longest, name),
            ),
            *(
                ClaimAnswer(
                    claim=exactly("4.8", f"{length} tokens: {slow} to {fast} ms", slow / fast, "x"),
                    recomputed=SPEED_UP(standard_ms=slow, tiled_ms=fast),
                    own=_ratio(ratios[length], length, name),
                )
                for length, (slow, fast) in CLAIMED_MS.items()
                if length in ratios
            ),
        ],
        tables=[
            ResultTable(
                title=f"A prompt's attention in one layer: {HEADS} heads of {HEAD_DIM}, float32; ours is {name}",
                kind=FigureKind.MEASURED,
                columns=(
                    "tokens", "standard_ms", "ours_ms", "speed_up", "standard_peak_mb", "ours_peak_mb", "scores_mb"
                ),
                rows=[
                    (
                        length, ways["standard"].ms, ways["ours"].ms, ratios[length],
                        ways["standard"].peak_bytes / 1e6, ways["ours"].peak_bytes / 1e6,
                        float(SCORES.of(heads=HEADS, tokens=length, element_bytes=DTYPE.itemsize)) / 1e6,
                    )
                    for length, ways in found.items()
                ],
            )
        ],
        plots=[
            ResultPlot(
                title="Attention of a prompt", kind=FigureKind.MEASURED, x_label="tokens", y_label="ms", is_x_log=True,
                is_y_log=True,
                lines={way: [(length, ways[way].ms) for length, ways in found.items()] for way in ("standard", "ours")},
            )
        ],
        notes=[
            "Peaks are of the whole process, in pages of the system; ours also writes K and V into its blocks.",
            "Published speed-ups are of a GPU, whose memory is slow beside its arithmetic; those here are of one CPU.",
        ],
    )  # fmt: skip


def _ratio(value: float, length: int, name: str) -> OwnFigure:
    return OwnFigure(
        name="speed_up", value=value, kind=FigureKind.MEASURED, how=f"{length} tokens, {HEADS} heads, {name}"
    )


def _kernel_name(conditions: RowConditions) -> str:
    return _ours(BLOCK_SIZE, conditions)[0]


def _both(length: int, repeats: int, conditions: RowConditions) -> Mapping[str, PromptCost]:
    qkv = torch.randn(length, 3 * HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(conditions.seed))
    _, ours = _ours(length, conditions)
    ways = {"standard": lambda: standard_attention(qkv), "ours": lambda: ours(qkv.clone())}
    return {way: _cost(compute, repeats) for way, compute in ways.items()}


def standard_attention(qkv: Tensor) -> Tensor:
    """All scores at once: [tokens, 3 * heads * head_dim] to [tokens, heads * head_dim], causal, nothing rotated."""
    length = qkv.shape[0]
    query, key, value = qkv.view(length, 3, HEADS, HEAD_DIM).permute(1, 2, 0, 3)
    scores = query @ key.transpose(1, 2)
    scores.mul_(1 / math.sqrt(HEAD_DIM))
    scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu_(1), -torch.inf)
    mixed: Tensor = torch.softmax(scores, -1) @ value
    return mixed.transpose(0, 1).reshape(length, -1)


def _ours(length: int, conditions: RowConditions) -> tuple[str, Callable[[Tensor], Tensor]]:
    """The engine's kernel over a pool of its own for one prompt of that length, with a rotation by no angle."""
    config = RunnerConfig(model_path=conditions.model, dtype="float32", num_threads=conditions.threads)
    num_blocks = -(-length // BLOCK_SIZE)
    geometry = KvGeometry(
        num_layers=1, num_kv_heads=HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE, element_bytes=DTYPE.itemsize
    )
    pages = KvPages(geometry, num_blocks, DTYPE, CPU)
    kernel = choose_kernels(config, CPU, DTYPE).attention(pages, HEADS, (None,), DTYPE)
    rope = RopeRows(torch.ones(length, HEAD_DIM), torch.zeros(length, HEAD_DIM))
    metadata = kernel.prepare([RowSpan(0, length, 0, tuple(range(num_blocks)))])
    return kernel.name, lambda qkv: kernel.forward(0, qkv, rope, None, metadata)


def _cost(compute: Callable[[], Tensor], repeats: int) -> PromptCost:
    compute()
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began_s)
    return PromptCost(ms=1e3 * statistics.median(times), peak_bytes=_peak_of(compute))


def _peak_of(compute: Callable[[], Tensor]) -> int:
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK, encoding="ascii")
    before = _status_bytes("VmRSS")
    compute()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))
