"""Deltas of choices, written short."""

from __future__ import annotations

from collections.abc import Sequence

from stratos.core.generation import ChoiceDelta
from stratos.core.requests.records import FinishReason, PositionLogprobs


def delta(
    offset: int,
    token_ids: Sequence[int] = (),
    logprobs: Sequence[PositionLogprobs] = (),
    finish_reason: FinishReason | None = None,
    *,
    index: int = 0,
) -> ChoiceDelta:
    return ChoiceDelta(index=index, offset=offset, token_ids=token_ids, logprobs=logprobs, finish_reason=finish_reason)
