"""Sampling on the device against "logits to the host, sort there": milliseconds of a step and of a token."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scripts.gpu.rig import Rig
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.sampling.sampler import Sampler
from stratos.engine.sampling.triton_sampler import TritonSampler
from stratos.reproduce.load.sorting_sampler import SortingSampler

BATCHES, VOCABULARIES = (1, 8, 32, 64), (32_000, 128_256)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "untruncated": SamplingParams(temperature=0.8),
    "top_k_top_p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "flat_top_p": SamplingParams(temperature=3.0, top_p=0.99),
}
REPEATS = 5
Sample = Callable[[Tensor, list[SampleSpec]], list[int]]


def run(rig: Rig) -> None:
    """Section ``sampling``."""
    shapes = [(2, 300)] if rig.is_rehearsal else [(batch, vocab) for vocab in VOCABULARIES for batch in BATCHES]
    for batch, vocab in shapes:
        for name, params in PARAMS.items():
            rig.attempt(f"{name}_{batch}x{vocab}", partial(_compared, rig, batch, vocab, params))


def _compared(rig: Rig, batch: int, vocab: int, params: SamplingParams) -> dict[str, Any]:
    """Wall time of each way from logits on the device to token ids on the host; the best of several."""
    logits = _logits(batch, vocab).to(rig.device)
    specs = [_spec(row, params) for row in range(batch)]
    tokens, result = {}, dict[str, Any]()
    for name, sample in _ways(vocab, rig.device).items():
        tokens[name] = sample(logits, specs)
        best = float("inf")
        for _ in range(1 if rig.is_rehearsal else REPEATS):
            rig.synchronize()
            begin = time.perf_counter()
            sample(logits, specs)
            best = min(best, time.perf_counter() - begin)
        result[f"{name}_ms"] = round(best * 1e3, 4)
        result[f"{name}_ms_per_token"] = round(best * 1e3 / batch, 5)
    on_host = tokens["host"]
    result["differing_tokens"] = {
        name: sum(a != b for a, b in zip(found, on_host, strict=True)) for name, found in tokens.items()
    }
    return result


def _ways(vocab: int, device: torch.device) -> dict[str, Sample]:
    split, whole = (TritonSampler((), vocab, device, is_split=is_split) for is_split in (True, False))
    host = torch.device("cpu")
    portable, on_host, sorting = Sampler((), vocab, device), Sampler((), vocab, host), SortingSampler((), vocab, host)
    return {
        "split": lambda logits, specs: split.sample(logits, specs).token_ids,
        "one_program_a_row": lambda logits, specs: whole.sample(logits, specs).token_ids,
        "sorted_on_device": lambda logits, specs: portable.sample(logits, specs).token_ids,
        "host": lambda logits, specs: on_host.sample(logits.cpu(), specs).token_ids,
        "host_sorted": lambda logits, specs: sorting.sample(logits.cpu(), specs).token_ids,
    }


def _logits(batch: int, vocab: int) -> Tensor:
    """A power law in shuffled order, as a language model's are: some tokens hold most of the mass."""
    generator = torch.Generator().manual_seed(batch + vocab)
    ranks = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(batch)])
    return -1.5 * torch.log1p(ranks.float())


def _spec(row: int, params: SamplingParams) -> SampleSpec:
    return SampleSpec(
        key=RequestKey(str(row), 0), choice=0, seed=row, position=row, params=params, prompt_ids=(), output_ids=(),
        num_output_tokens=0,
    )  # fmt: skip
