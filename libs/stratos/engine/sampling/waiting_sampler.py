"""The portable sampler with the contract of the GPU's: sorts, and waits for the device before the next launch.

It is what the sort-free sampler is compared with, and what a GPU can fall back to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.engine.contract.plan import SampleSpec
from stratos.engine.memory.copies import to_device
from stratos.engine.sampling.logits_processors import TokenMask
from stratos.engine.sampling.sampler import Sampled, Sampler


@dataclass(frozen=True, slots=True)
class FinishedSample:
    """A sample that the host has already."""

    token_ids: Tensor
    """int64 [rows], on the device; a row that failed has any token of the vocabulary."""
    sampled: Sampled

    def tensors(self) -> list[Tensor]:
        """Nothing is left to copy."""
        return []


class WaitingSampler:
    """Samples one token per row; arguments as for ``Sampler``."""

    def __init__(self, eos_token_ids: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self._sampler, self._device = Sampler(eos_token_ids, vocab_size, device), device

    def start(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> FinishedSample:
        sampled = self._sampler.sample(logits, specs, masks)
        return FinishedSample(to_device(np.array(sampled.token_ids, dtype=np.int64), self._device), sampled)

    def finish(self, pending: FinishedSample, tensors: Sequence[Tensor], specs: Sequence[SampleSpec]) -> Sampled:
        return pending.sampled
