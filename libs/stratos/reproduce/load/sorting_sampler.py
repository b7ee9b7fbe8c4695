"""A sampler that sorts all logits of each row, one row after the other: how a host samples without care.

It keeps the engine's rules and its noise, so that it chooses the same tokens; only the time differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from stratos.engine.contract.plan import SampleSpec
from stratos.engine.sampling.counter_rng import gumbel, noise_keys
from stratos.engine.sampling.logits_processors import TokenMask
from stratos.engine.sampling.sampler import Sampled, Sampler

CPU = torch.device("cpu")


class SortingSampler(Sampler):
    """Takes the place of a runner's own, for temperature, top-k and top-p alone."""

    def sample(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> Sampled:
        """Sample every row; arguments as for ``Sampler.sample``."""
        assert not masks, "the sorting sampler knows no grammars"
        return Sampled([torch_sorted(row, spec) for row, spec in zip(logits, specs, strict=True)])


def torch_sorted(row: Tensor, spec: SampleSpec) -> int:
    """One row: sort all, cut, draw."""
    values, token_ids = torch.sort(row, descending=True, stable=True)  # equal logits: the lowest id first
    return _drawn(values, token_ids, spec)


def python_sorted(row: Tensor, spec: SampleSpec) -> int:
    """The same with the sort of the language."""
    values = row.tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    token_ids = torch.tensor(order)
    return _drawn(row[token_ids], token_ids, spec)


def _drawn(values: Tensor, token_ids: Tensor, spec: SampleSpec) -> int:
    params = spec.params
    if params.is_greedy:
        return int(token_ids[0])
    scaled = (values - values[0]) / params.temperature
    mass = scaled.double().exp()
    if params.top_k:
        mass[params.top_k :] = 0.0
    cumulative = mass.cumsum(0)
    num_kept = int(((cumulative - mass < params.top_p * cumulative[-1]) & (mass > 0)).sum())
    kept = token_ids[:num_kept]
    noise = gumbel(noise_keys([(spec.seed, spec.choice, spec.position)], CPU), kept.to(torch.int32))[0]
    return int(kept[(scaled[:num_kept] + noise).argmax()])
