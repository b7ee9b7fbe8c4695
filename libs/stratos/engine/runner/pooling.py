"""Pools the hidden states of a step for the rows of embedding requests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stratos.core.requests.embedding import PoolingKind
from stratos.engine.attention.backend import RowSpan
from stratos.engine.contract.plan import PlanRow, PooledRow


def pool_rows(
    rows: tuple[PlanRow, ...], spans: list[RowSpan], hidden: Tensor, final_states: Callable[[Tensor], Tensor]
) -> list[PooledRow]:
    """Pool each row that asks for it, on the host.

    Args:
        rows: of the plan.
        spans: where they lie in the flat batch.
        hidden: [tokens, hidden size], before the model's last norm.
        final_states: the last norm; applied to pooled tokens only.

    Returns:
        For ``LAST`` the state of the row's last token, for ``MEAN`` the sum over the row's tokens, float64: so that the
        mean, rounded to float32, does not tell how a prompt was cut into rows.
    """
    pooled = []
    for row, span in zip(rows, spans, strict=True):
        if row.pool is None:
            continue
        end = span.begin + span.num_tokens
        begin = end - 1 if row.pool is PoolingKind.LAST else span.begin
        states = final_states(hidden[begin:end]).to(torch.float64)
        pooled.append(PooledRow(row.seq_id, states.sum(0).cpu().numpy().tobytes()))
    return pooled
