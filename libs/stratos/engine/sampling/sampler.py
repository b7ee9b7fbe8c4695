"""From logits to tokens: edits, temperature, truncation, argmax with counter noise.

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
from stratos.engine.contract.plan import ALL_BANNED, SampleSpec
from stratos.engine.layers.ops import LayerOps, TorchOps
from stratos.engine.sampling.counter_rng import gumbel, noise_keys
from stratos.engine.sampling.filters import candidate_counts, keep_top, min_p_
from stratos.engine.sampling.logits_processors import TokenMask, edit_row, needs_edit
from stratos.engine.sampling.logprobs import position_logprobs
from stratos.engine.sampling.watermark import add_watermark

NON_FINITE = "the model's logits are not finite"
LEAST_TEMPERATURE = 1e-30


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
        if not masks and all(_is_plain_greedy(spec) for spec in specs):
            return self._greedy(logits)
        errors = dict.fromkeys(_non_finite_rows(logits), NON_FINITE)
        if errors:
            logits = logits.clone()
            logits[list(errors)] = 0.0
        edited = self._edit(logits, specs, masks or {}, errors)
        token_ids = edited.argmax(1)
        random_rows = [r for r, spec in enumerate(specs) if not spec.params.is_greedy and spec.params.top_k != 1]
        if random_rows:
            rows = torch.tensor(random_rows, device=self._device)
            chosen = edited if len(random_rows) == len(specs) else edited.index_select(0, rows)
            token_ids.index_copy_(0, rows, self._draw(chosen, [specs[row] for row in random_rows]))
        sampled = Sampled(token_ids.tolist(), errors=errors)
        self._add_logprobs(sampled, logits, token_ids, specs)
        return sampled

    def _greedy(self, logits: Tensor) -> Sampled:
        """The whole batch wants the best token and nothing else."""
        token_ids, is_finite = self._ops.greedy(logits)
        rows = [row for row, is_good in enumerate(is_finite.tolist()) if not is_good]
        return Sampled(token_ids.tolist(), errors=dict.fromkeys(rows, NON_FINITE))

    def _edit(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask], errors: dict[int, str]
    ) -> Tensor:
        rows = [row for row, spec in enumerate(specs) if needs_edit(spec) or row in masks]
        if not rows:
            return logits
        edited = logits.clone()
        for row in rows:
            edit_row(edited[row], specs[row], self._eos_token_ids, masks.get(row))
            if bool(edited[row].max() == -torch.inf):
                errors.setdefault(row, ALL_BANNED)
                edited[row] = 0.0
        add_watermark(edited, specs, self._vocab)
        return edited

    def _draw(self, logits: Tensor, specs: Sequence[SampleSpec]) -> Tensor:
        """Scale by temperature, truncate, add noise: int64 [rows]."""
        params = [spec.params for spec in specs]
        temperature = self._column([max(p.temperature, LEAST_TEMPERATURE) for p in params], torch.float32)
        scaled = (logits - logits.amax(1, keepdim=True)).div_(temperature.unsqueeze(1))
        keys = noise_keys([(spec.seed, spec.choice, spec.position) for spec in specs], self._device)
        is_truncated = [p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params]
        if not any(is_truncated):
            return self._pick(scaled, keys)
        if all(is_truncated):
            return self._pick_truncated(scaled, keys, params)
        token_ids = torch.empty(len(specs), dtype=torch.int64, device=self._device)
        rows = torch.tensor(is_truncated, device=self._device)
        token_ids[~rows] = self._pick(scaled[~rows], keys[~rows])
        truncated = [p for p, flag in zip(params, is_truncated, strict=True) if flag]
        token_ids[rows] = self._pick_truncated(scaled[rows], keys[rows], truncated)
        return token_ids

    def _pick(self, scaled: Tensor, keys: Tensor) -> Tensor:
        return gumbel(keys, self._vocab).add_(scaled).argmax(1)

    def _pick_truncated(self, scaled: Tensor, keys: Tensor, params: Sequence[SamplingParams]) -> Tensor:
        """Noise is needed only for tokens that survive."""
        vocab_size = scaled.shape[1]
        if any(p.min_p > 0 for p in params):
            min_p_(scaled, self._column([p.min_p for p in params], torch.float32))
        top_k = self._column([min(p.top_k or vocab_size, vocab_size) for p in params], torch.int64)
        top_p = self._column([p.top_p for p in params], torch.float64)
        token_ids = torch.empty(len(params), dtype=torch.int64, device=self._device)
        rows = torch.arange(len(params), device=self._device)
        for count in candidate_counts(vocab_size, max((p.top_k for p in params if p.top_k < vocab_size), default=0)):
            kept = keep_top(scaled[rows], top_k[rows], top_p[rows], count)
            best = gumbel(keys[rows], kept.token_ids.to(torch.int32)).add_(kept.logits).argmax(1, keepdim=True)
            token_ids[rows] = kept.token_ids.gather(1, best).squeeze(1)
            if bool(kept.is_complete.all()):
                break
            rows = rows[~kept.is_complete]
        return token_ids

    def _column(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _add_logprobs(self, sampled: Sampled, raw: Tensor, token_ids: Tensor, specs: Sequence[SampleSpec]) -> None:
        wanted = {
            row: spec.params.num_logprobs for row, spec in enumerate(specs) if spec.params.num_logprobs is not None
        }
        if not wanted:
            return
        rows = torch.tensor(list(wanted), device=self._device)
        records = position_logprobs(raw.index_select(0, rows), token_ids.index_select(0, rows), list(wanted.values()))
        sampled.logprobs = dict(zip(wanted, records, strict=True))


def _is_plain_greedy(spec: SampleSpec) -> bool:
    params = spec.params
    return params.is_greedy and params.num_logprobs is None and not needs_edit(spec)


def _non_finite_rows(logits: Tensor) -> list[int]:
    """A sum is finite if and only if every term is: one pass, no temporary of the size of the logits."""
    is_bad = ~torch.isfinite(logits.sum(1))
    return is_bad.nonzero().squeeze(1).tolist() if bool(is_bad.any()) else []
