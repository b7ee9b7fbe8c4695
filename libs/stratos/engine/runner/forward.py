"""The forward pass of one step: from inputs to hidden states and logits, operation by operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.contract.plan import NON_FINITE_HIDDEN, StepPlan
from stratos.engine.memory.state_slots import StateSlots
from stratos.engine.models.decoder import Decoder
from stratos.engine.runner.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """Result of one pass; valid until the next pass."""

    hidden: Tensor
    """Hidden states before the last norm, [at least T, H]; rows from T on are undefined."""
    logits: Tensor | None
    """float32 [sampled rows, vocab]; ``None`` when nothing is sampled."""
    is_finite: np.ndarray
    """Whether all of a token's hidden state is, bool [T]."""


class Forward(ABC):
    """Runs all layers over the rows of a step and writes their KV."""

    is_bare = False
    """Inputs that were kept, without adapters, make it call no operation of torch that needs its inference mode."""

    states: StateSlots | None = None
    """Recurrent states, where the model has some."""

    @abstractmethod
    def run(self, inputs: StepInputs) -> ForwardResult:
        """Compute one step."""


class LayeredForward(Forward):
    """Any model on any device: one call per operation."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, states: StateSlots | None = None) -> None:
        self._decoder, self._attention, self.states = decoder, attention, states

    def run(self, inputs: StepInputs) -> ForwardResult:
        metadata = self._attention.prepare(inputs.spans)
        states = None
        if self.states is not None:
            if any(state is None and span.start for span, state in zip(inputs.spans, inputs.states, strict=True)):
                raise ValueError("a row goes on and has no state")
            states = self.states.prepare([(span.begin, span.num_tokens) for span in inputs.spans], inputs.states)
        hidden = self._decoder.forward(
            inputs.token_ids, inputs.positions, self._attention, metadata, inputs.lora, states
        )
        logits, tokens = None, inputs.sampled_tokens
        if inputs.sampled_rows:
            logits = self._decoder.logits(hidden if tokens is None else hidden.index_select(0, tokens))
        return ForwardResult(hidden, logits, finite_tokens(hidden, self._attention.cut(metadata)).cpu().numpy())


def finite_tokens(hidden: Tensor, cut: Tensor | None) -> Tensor:
    """Bool [tokens]: the hidden state is finite, for a sum is if and only if every term is, and no K or V was cut."""
    is_finite = torch.isfinite(hidden.float().sum(1))
    return is_finite if cut is None else is_finite & ~cut


def report_non_finite(
    is_finite: np.ndarray, plan: StepPlan, inputs: StepInputs, errors: dict[int, str]
) -> dict[int, int]:
    """Name every row with a token whose hidden state is not finite, so that its KV is not shared.

    A drafted token is no error; returned is how many of them come before the first such one, by seq_id.
    """
    num_sound: dict[int, int] = {}
    if is_finite.all():
        return num_sound
    for row, span in zip(plan.rows, inputs.spans, strict=True):
        first_draft = span.begin + span.num_tokens - len(row.verify)
        if not is_finite[span.begin : first_draft].all():
            errors.setdefault(row.seq_id, NON_FINITE_HIDDEN)
        elif not (drafts := is_finite[first_draft : span.begin + span.num_tokens]).all():
            num_sound[row.seq_id] = int(drafts.argmin())
    return num_sound
