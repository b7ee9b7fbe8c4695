"""Log probabilities of prompt tokens, from the hidden states of a step.

Logits are made for a few tokens at a time, so a long chunk costs the memory of ``SLICE`` rows of logits and no more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stratos.core.requests.records import PositionLogprobs
from stratos.engine.attention.backend import RowSpan
from stratos.engine.contract.plan import PlanRow
from stratos.engine.sampling.logprobs import position_logprobs

SLICE = 64
"""Tokens whose logits exist at once."""


def prompt_logprobs(
    rows: tuple[PlanRow, ...], spans: list[RowSpan], hidden: Tensor, logits: Callable[[Tensor], Tensor]
) -> dict[int, list[PositionLogprobs]]:
    """Log probabilities of the targets of each row that has some.

    Args:
        rows: of the plan.
        spans: where they lie in the flat batch.
        hidden: [tokens, hidden size], before the model's last norm.
        logits: float32 [n, vocab] of hidden states [n, hidden size].

    Returns:
        seq_id -> one entry per target, in order.
    """
    found = {}
    for row, span in zip(rows, spans, strict=True):
        if row.targets is None:
            continue
        entries: list[PositionLogprobs] = []
        for begin in range(0, len(row.targets.token_ids), SLICE):
            targets = row.targets.token_ids[begin : begin + SLICE]
            first = span.begin + row.targets.begin + begin
            token_ids = torch.tensor(targets, dtype=torch.int64, device=hidden.device)
            raw = logits(hidden[first : first + len(targets)])
            entries += position_logprobs(raw, token_ids, [row.targets.num_top] * len(targets))
        found[row.seq_id] = entries
    return found
