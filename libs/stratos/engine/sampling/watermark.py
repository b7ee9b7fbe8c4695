"""``stratos.core.requests.watermark`` with tensors: adds delta to the logits of each row's green tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stratos.core.requests.watermark import Watermark, list_key
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.sampling.counter_rng import hashes

_SIGN = 1 << 31


def marked_rows(specs: Sequence[SampleSpec]) -> list[tuple[int, Watermark]]:
    """Rows with a watermark."""
    return [(row, spec.params.watermark) for row, spec in enumerate(specs) if spec.params.watermark is not None]


def add_watermark(logits: Tensor, specs: Sequence[SampleSpec], vocab: Tensor) -> None:
    """Mark the rows that ask for it, in place.

    Args:
        logits: float32 [rows, vocab].
        specs: one per row, with the tokens emitted so far.
        vocab: int32 [vocab], all token ids.
    """
    marked = marked_rows(specs)
    if not marked:
        return
    device = logits.device
    words = [[_signed(word) for word in list_key(mark, context_of(specs[row], mark))] for row, mark in marked]
    keys = torch.tensor(words, dtype=torch.int32).to(device)
    # unsigned comparison with signed numbers: both sides are moved by 2**31
    thresholds = torch.tensor([[mark.threshold - _SIGN] for _, mark in marked], dtype=torch.int32).to(device)
    deltas = torch.tensor([[mark.delta] for _, mark in marked], dtype=logits.dtype).to(device)
    is_green = (hashes(keys, vocab) ^ -_SIGN) < thresholds
    rows = torch.tensor([row for row, _ in marked], dtype=torch.int64).to(device)
    logits.index_add_(0, rows, is_green * deltas)


def context_of(spec: SampleSpec, watermark: Watermark) -> tuple[int, ...]:
    """Tokens before the position that decide its list."""
    width = watermark.num_context_tokens
    return (*spec.prompt_ids[-width:], *spec.output_ids[-width:])[-width:]


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= _SIGN else word
