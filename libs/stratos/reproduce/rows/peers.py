"""The same requests by plain PyTorch, by ``transformers`` with and without continuous batching, and by our engine.

Three ways are of the ``transformers`` library, over the same checkpoint in the same type with as many threads: one
request after the other, padded batches that run until their longest output has ended, and its continuous batching
where the installed version has it; there every output has the mean length, since a call takes one length for all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from random import Random
from typing import Any

import torch

from stratos.engine.settings import SchedulerConfig
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.loaded import large_model, load_model
from stratos.reproduce.record.answer import ClaimAnswer, FigureKind, OwnFigure
from stratos.reproduce.record.claim import exactly
from stratos.reproduce.record.conditions import RowConditions, RowForm
from stratos.reproduce.record.result import Cell, ResultTable, RowResult

LIBRARY = "transformers"
ONE, STATIC, CONTINUOUS, OURS = "torch, one at a time", "torch, static batches", "continuous batching", "ours"
BATCH, FIRST_TOKEN, PAD = 8, 10, 0
PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """Prompts and how long each answer is."""

    prompts: list[list[int]]
    outputs: list[int]

    def asks(self) -> list[LoadAsk]:
        """The same for our engine."""
        return [
            LoadAsk(num_prompt_tokens=len(prompt), num_output_tokens=count, prompt_ids=tuple(prompt))
            for prompt, count in zip(self.prompts, self.outputs, strict=True)
        ]


def measure(conditions: RowConditions) -> RowResult:
    """All ways; those of a library that is not installed are left out and named."""
    count, most_prompt, most_output = conditions.sized(smoke=(4, 16, 6), short=(24, 96, 64), full=(32, 192, 96))
    ours = load_model(conditions)
    load = _load(count, most_prompt, most_output, ours.runner.info.vocab_size, conditions.seed)
    ours.run(SchedulerConfig(max_num_seqs=BATCH), load.asks()[:1])
    run = ours.run(SchedulerConfig(max_num_seqs=BATCH), load.asks())
    times = {**_peers(conditions, load), OURS: run.duration_s}
    speeds = {way: sum(load.outputs) / seconds for way, seconds in times.items()}
    answers = []
    if STATIC in speeds:
        own = OwnFigure(
            name="speed_up", value=speeds[OURS] / speeds[STATIC], kind=FigureKind.MEASURED,
            how=f"{OURS} over {STATIC}, {count} requests, batches of {BATCH}, {ours.name}",
        )  # fmt: skip
        answers.append(
            ClaimAnswer(claim=exactly("4.11", "a serving engine 42 requests/s, torch 12: 3.5x", 42 / 12, "x"), own=own)
        )
    return RowResult(
        answers=answers,
        tables=[
            ResultTable(
                title=f"{count} requests, at most {BATCH} at once: {ours.name}",
                kind=FigureKind.MEASURED,
                columns=("way", "tokens_per_s", "ours_over_it"),
                rows=[(way, speed, speeds[OURS] / speed) for way, speed in speeds.items()],
            )
        ],
        notes=[_library_note(), *_missing_notes(speeds)],
    )


def _load(count: int, most_prompt: int, most_output: int, vocab_size: int, seed: int) -> PeerLoad:
    rng = Random(seed)
    lengths = [rng.randint(most_prompt // 4, most_prompt) for _ in range(count)]
    prompts = [[rng.randrange(FIRST_TOKEN, vocab_size) for _ in range(length)] for length in lengths]
    return PeerLoad(prompts=prompts, outputs=[rng.randint(most_output // 8 + 2, most_output) for _ in range(count)])


def _library_note() -> str:
    try:
        return f"{LIBRARY} {version(LIBRARY)}, torch {torch.__version__}."
    except PackageNotFoundError:
        return f"{LIBRARY} is not installed: only ours was measured."


def _missing_notes(found: Mapping[str, Cell]) -> list[str]:
    return [] if CONTINUOUS in found or STATIC not in found else [f"This version of {LIBRARY} has no {CONTINUOUS}."]


def _peers(conditions: RowConditions, load: PeerLoad) -> dict[str, float]:
    """Seconds of each way of the library."""
    try:
        library = import_module(LIBRARY)
        import_module(f"{LIBRARY}.utils.logging").disable_progress_bar()  # ours says which row runs
    except ImportError:
        return {}
    torch.set_num_threads(conditions.threads)
    is_large = conditions.form is RowForm.FULL
    model = library.AutoModelForCausalLM.from_pretrained(
        large_model(conditions) if is_large else conditions.model, dtype=torch.bfloat16 if is_large else torch.float32
    ).eval()
    with torch.inference_mode():
        _generated(library, model, load.prompts[:1], 2)
        times = {
            ONE: _seconds_of_batches(library, model, load, 1),
            STATIC: _seconds_of_batches(library, model, load, BATCH),
        }
        if hasattr(model, "generate_batch"):
            times[CONTINUOUS] = _continuous_seconds(library, model, load)
    return times


def _seconds_of_batches(library: Any, model: Any, load: PeerLoad, size: int) -> float:
    """Batches one after the other, each for as long as its longest output."""
    began_s = time.perf_counter()
    for first in range(0, len(load.prompts), size):
        part = slice(first, first + size)
        _generated(library, model, load.prompts[part], max(load.outputs[part]))
    return time.perf_counter() - began_s


def _generated(library: Any, model: Any, prompts: Sequence[list[int]], count: int) -> None:
    longest = max(map(len, prompts))
    padded = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = library.GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=PAD, eos_token_id=PAD
    )
    model.generate(padded, attention_mask=mask, generation_config=settings)


def _continuous_seconds(library: Any, model: Any, load: PeerLoad) -> float:
    """All at once; a call of the library has one length of output, so each request has the mean of all."""
    count = round(sum(load.outputs) / len(load.outputs))
    settings = library.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=PAD, eos_token_id=-1)
    longest = max(map(len, load.prompts)) + count
    began_s = time.perf_counter()
    model.generate_batch(
        inputs=load.prompts,
        generation_config=settings,
        continuous_batching_config=library.ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=BATCH * -(-longest // PAGE_TOKENS),
            max_batch_tokens=512,
            max_requests_per_batch=BATCH,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
        ),
        progress_bar=False,
        warmup=False,
    )
    return time.perf_counter() - began_s
