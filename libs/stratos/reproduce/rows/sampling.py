"""Sampling a token: ours against a sort of all logits for each row, which is how a host samples without care.

All arms draw from the same distribution (temperature 0.8, top-k 40, top-p 0.9) with the same noise, so they must choose
the same tokens; that is counted.  Here the logits are in host memory to begin with: copying them there is not timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stratos.calculators.formula import Formula
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.sampling.sampler import Sampler
from stratos.reproduce.load.sorting_sampler import python_sorted, torch_sorted
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import between, exactly
from stratos.reproduce.record.conditions import RowConditions
from stratos.reproduce.record.result import ResultPlot, ResultTable, RowResult

SMALL, LARGE = 32_000, 128_256
PARAMS = SamplingParams(temperature=0.8, top_k=40, top_p=0.9)
CPU = torch.device("cpu")
OPERATIONS = Formula("sort_operations", "vocabulary * comparisons")
Arm = Callable[[Tensor, Sequence[SampleSpec]], list[int]]


def measure(conditions: RowConditions) -> RowResult:
    """Every arm with every vocabulary and batch."""
    vocabularies = conditions.sized(smoke=(SMALL,), short=(SMALL, LARGE), full=(SMALL, LARGE))
    batches = conditions.sized(smoke=(1, 4), short=(1, 4, 16, 64), full=(1, 2, 4, 8, 16, 32, 64))
    repeats = conditions.sized(smoke=1, short=2, full=5)
    times_ms: dict[tuple[int, int, str], float] = {}
    rows, num_different = [], 0
    for vocabulary in vocabularies:
        arms = _arms(vocabulary)
        for batch in batches:
            logits, specs = _load(vocabulary, batch, conditions.seed)
            found = {name: _timed(arm, logits, specs, repeats) for name, arm in arms.items()}
            num_different += sum(tokens != found["ours"][1] for _, tokens in found.values())
            times_ms |= {(vocabulary, batch, name): ms for name, (ms, _) in found.items()}
            cells = [ms for ms, _ in found.values()]
            rows.append((vocabulary, batch, *cells, cells[1] / cells[2]))
    sort_ms = times_ms[SMALL, 1, "torch sort"]
    how = "vocabulary of 32,000, one row, torch sort"
    return RowResult(
        answers=[
            ClaimAnswer(
                claim=between("0.4", "sampling on the CPU costs 2-8 ms a token", 2, 8, "ms"),
                own=OwnFigure(name="sort_ms", value=sort_ms, kind=FigureKind.MEASURED, how=how),
            ),
            ClaimAnswer(
                claim=between("0.4", "400-1,600 ms for 200 tokens", 400, 1600, "ms"),
                own=OwnFigure(name="sort_ms_of_200", value=200 * sort_ms, kind=FigureKind.MEASURED, how=how),
            ),
            ClaimAnswer(
                claim=exactly("0.4", "sorting 32,000 logits: 32,000 x 15 = 480,000 operations", 480_000),
                recomputed=OPERATIONS(vocabulary=SMALL, comparisons=15),
            ),
        ],
        tables=[
            ResultTable(
                title="Milliseconds for a token, by the rows of a batch", kind=FigureKind.MEASURED,
                columns=("vocabulary", "rows", "python_sort_ms", "torch_sort_ms", "ours_ms", "ours_against_torch_sort"),
                rows=rows,
            )
        ],
        plots=[
            ResultPlot(
                title="Sampling a token", kind=FigureKind.MEASURED, x_label="rows of a batch", y_label="ms per token",
                is_x_log=True, is_y_log=True,
                lines={
                    f"{name}, {vocabulary // 1000} K": [(batch, times_ms[vocabulary, batch, name]) for batch in batches]
                    for vocabulary in vocabularies for name in ("torch sort", "ours")
                },
            )
        ],
        notes=[f"Batches in which an arm chose other tokens than ours: {num_different} of {2 * len(rows)}."],
    )  # fmt: skip


def _arms(vocabulary: int) -> dict[str, Arm]:
    sampler = Sampler((), vocabulary, CPU)
    return {
        "python sort": lambda logits, specs: [
            python_sorted(row, spec) for row, spec in zip(logits, specs, strict=True)
        ],
        "torch sort": lambda logits, specs: [torch_sorted(row, spec) for row, spec in zip(logits, specs, strict=True)],
        "ours": lambda logits, specs: sampler.sample(logits, specs).token_ids,
    }


def _load(vocabulary: int, batch: int, seed: int) -> tuple[Tensor, list[SampleSpec]]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, vocabulary, generator=generator)
    specs = [
        SampleSpec(
            key=RequestKey(f"r{row}", 0), choice=0, seed=seed + row, position=17, params=PARAMS, prompt_ids=(),
            output_ids=(), num_output_tokens=0,
        )
        for row in range(batch)
    ]  # fmt: skip
    return logits, specs


def _timed(arm: Arm, logits: Tensor, specs: Sequence[SampleSpec], repeats: int) -> tuple[float, list[int]]:
    """Milliseconds for a token (median of the repeats), and the tokens."""
    times, tokens = [], arm(logits, specs)  # the first call warms up
    for _ in range(repeats):
        began_s = time.perf_counter()
        tokens = arm(logits, specs)
        times.append(1e3 * (time.perf_counter() - began_s) / len(specs))
    return statistics.median(times), tokens
