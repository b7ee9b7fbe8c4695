"""Requests accepted by the worker and not yet submitted to its engine.

A hand-off takes blocks and places in the batch when its source is about to compute.  Until then the request is an
intent: routers count it as promised, or they would give away the room that it will take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratos.core.requests.records import EngineRequest
from stratos.core.rules.admission import copied_blocks, max_output_tokens, output_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Intents:
    """Sum over requests."""

    num_blocks: int = 0
    num_batch_slots: int = 0


def sum_intents(
    requests: Iterable[EngineRequest], p90_output_tokens: int, block_size: int, max_batch_slots: int
) -> Intents:
    """Blocks and places that ``requests`` will take; a shared prefix is not known yet and counts for each."""
    num_blocks = num_batch_slots = 0
    for request in requests:
        num_choices = sum(not choice.finished for choice in request.choices)
        num_blocks += -(-len(request.prompt_ids) // block_size)
        most = max_output_tokens(request)
        num_blocks += output_blocks(most, p90_output_tokens, num_choices, block_size, is_resumed=request.is_resumed)
        if request.num_emitted_tokens == 0:
            num_blocks += copied_blocks(len(request.prompt_ids), num_choices, block_size)
        num_batch_slots += min(num_choices, max_batch_slots)
    return Intents(num_blocks=num_blocks, num_batch_slots=num_batch_slots)
