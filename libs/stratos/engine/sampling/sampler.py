"""From logits to tokens: logits processors, temperature, truncation, argmax with counter noise.

Order: logit bias -> penalties -> watermark, bans, grammar mask -> temperature -> min-p -> top-k -> top-p ->
``argmax(logits + gumbel(seed, choice, position, token))``.  Temperature 0 and top-k 1 are the plain argmax, ties to the
lowest id.  Rows are independent of each other, so a seeded request gets the same tokens alone and in any batch.
A stage that no row asks for costs nothing; a row whose logits are not finite fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stratos.core.requests.records import PositionLogprobs
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.layers.ops import LayerOps, TorchOps
from stratos.engine.sampling.counter_rng import gumbel, noise_keys
from stratos.engine.sampling.filters import is_truncated, scale_, survivors, takes_best
from stratos.engine.sampling.logits_processors import TokenMask, apply_changes, needs_processing, row_changes
from stratos.engine.sampling.logprobs import position_logprobs
from stratos.engine.sampling.watermark import add_watermark


@dataclass(slots=True)
class Sampled:
    """Results by row of the logits; a row is in ``errors`` or has a token that counts."""

    token_ids: list[int]
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Samples one token per row.

    Args:
        eos_token_ids: banned while ``min_tokens`` asks for more, unless the request ignores them.
        device: where the logits are.
        ops: takes the best token of a batch that wants nothing else.
    """

    def __init__(
        self, eos_token_ids: Sequence[int], vocab_size: int, device: torch.device, ops: LayerOps | None = None
    ) -> None:
        self._eos_token_ids, self._device, self._ops = tuple(eos_token_ids), device, ops or TorchOps()
        self._vocab = torch.arange(vocab_size, dtype=torch.int32, device=device)

    def sample(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> Sampled:
        """Sample every row.

        Args:
            logits: float32 [rows, vocab]; not changed.
            specs: one per row.
            masks: allowed tokens by row; rows without an entry are unconstrained.
        """
        if not masks and all(is_plain_greedy(spec) for spec in specs):
            return self.greedy(logits)
        errors = dict.fromkeys(_non_finite_rows(logits), NON_FINITE)
        if errors:
            logits = logits.clone()
            logits[list(errors)] = 0.0
        processed = self._process(logits, specs, masks or {}, errors)
        token_ids = processed.argmax(1)
        random_rows = [r for r, spec in enumerate(specs) if not takes_best(spec.params)]
        if random_rows:
            rows = torch.tensor(random_rows, device=self._device)
            chosen = processed if len(random_rows) == len(specs) else processed.index_select(0, rows)
            token_ids.index_copy_(0, rows, self._draw(chosen, [specs[row] for row in random_rows]))
        sampled = Sampled(token_ids.tolist(), errors=errors)
        self._add_logprobs(sampled, logits, token_ids, specs)
        return sampled

    def greedy(self, logits: Tensor) -> Sampled:
        """``sample`` where the whole batch wants the best token and nothing else."""
        token_ids, is_finite = self._ops.greedy(logits)
        rows = [] if all(is_finite) else [row for row, is_good in enumerate(is_finite) if not is_good]
        return Sampled(token_ids, errors=dict.fromkeys(rows, NON_FINITE))

    def _process(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask], errors: dict[int, str]
    ) -> Tensor:
        rows = [row for row, spec in enumerate(specs) if needs_processing(spec) or row in masks]
        if not rows:
            return logits
        processed, vocab_size = logits.clone(), logits.shape[1]
        for row in rows:
            spec = specs[row]
            apply_changes(processed[row], row_changes(spec, self._eos_token_ids, vocab_size, masks.get(row)), spec)
            if bool(processed[row].max() == -torch.inf):
                errors.setdefault(row, ALL_BANNED)
                processed[row] = 0.0
        add_watermark(processed, specs, self._vocab)
        return processed

    def _draw(self, logits: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
        """Scale by temperature, truncate, add noise: int64 [rows]."""
        params = [spec.params for spec in specs]
        scaled = logits - logits.amax(1, keepdim=True)
        scale_(scaled, params)
        keys = noise_keys([(spec.seed, spec.choice, spec.position) for spec in specs], self._device)
        flags = [is_truncated(p) for p in params]
        if not any(flags):
            return self._pick(scaled, keys)
        if all(flags):
            return self._pick_truncated(scaled, keys, params)
        token_ids = torch.empty(len(specs), dtype=torch.int64, device=self._device)
        rows = torch.tensor(flags, device=self._device)
        token_ids[~rows] = self._pick(scaled[~rows], keys[~rows])
        truncated = [p for p, flag in zip(params, flags, strict=True) if flag]
        token_ids[rows] = self._pick_truncated(scaled[rows], keys[rows], truncated)
        return token_ids

    def _pick(self, scaled: Tensor, keys: Tensor) -> Tensor:
        return gumbel(keys, self._vocab).add_(scaled).argmax(1)

    def _pick_truncated(self, scaled: Tensor, keys: Tensor, params: Sequence[SamplingParams]) -> Tensor:
        """Noise is needed only for tokens that survive."""
        token_ids = torch.empty(len(params), dtype=torch.int64, device=self._device)
        for rows, kept in survivors(scaled, params):
            best = gumbel(keys[rows], kept.token_ids.to(torch.int32)).add_(kept.logits).argmax(1, keepdim=True)
            token_ids[rows] = kept.token_ids.gather(1, best).squeeze(1)
        return token_ids

    def _add_logprobs(self, sampled: Sampled, raw: Tensor, token_ids: Tensor, specs: Sequence[SampleSpec]) -> None:
        wanted = {
            row: spec.params.num_logprobs for row, spec in enumerate(specs) if spec.params.num_logprobs is not None
        }
        if not wanted:
            return
        rows = torch.tensor(list(wanted), device=self._device)
        records = position_logprobs(raw.index_select(0, rows), token_ids.index_select(0, rows), list(wanted.values()))
        sampled.logprobs = dict(zip(wanted, records, strict=True))


def is_plain_greedy(spec: SampleSpec) -> bool:
    """The row wants the best token of its logits, and no more."""
    params = spec.params
    return params.is_greedy and params.num_logprobs is None and not needs_processing(spec)


def _non_finite_rows(logits: Tensor) -> list[int]:
    """A sum is finite if and only if every term is: one pass, no temporary of the size of the logits."""
    is_bad = ~torch.isfinite(logits.sum(1))
    return is_bad.nonzero().squeeze(1).tolist() if bool(is_bad.any()) else []
