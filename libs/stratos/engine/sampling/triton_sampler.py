"""The sampler of the GPU: everything is enqueued, nothing waits for the host until ``finish``.

The order of stages and the tokens are those of ``sampler``; only the way differs.  What depends on a request's own data
alone (bias, bans, allowed tokens) becomes flat index lists that are copied once; penalties need what the output holds,
which is counted on the host from ``SampleSpec``.  A row that fails has a token within the vocabulary all the same, so
that a step launched after it can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import ALL_BANNED, SampleSpec
from stratos.engine.memory.copies import to_device
from stratos.engine.sampling.counter_rng import noise_keys
from stratos.engine.sampling.logits_processors import TokenMask, banned_tokens
from stratos.engine.sampling.logprobs import LogprobTensors, logprob_tensors, position_records
from stratos.engine.sampling.sampler import NON_FINITE, Sampled
from stratos.engine.sampling.watermark import add_watermark, marked_rows
from stratos.engine.triton_kernels import sampling


@dataclass(frozen=True, slots=True)
class PendingSample:
    """A sample that the device may still be computing."""

    token_ids: Tensor
    """int64 [rows]."""
    flags: Tensor
    """int8 [2, rows]: not finite, every token banned."""
    logprob_rows: tuple[int, ...]
    logprobs: LogprobTensors | None

    def tensors(self) -> list[Tensor]:
        """What the host needs, in the order that ``finish`` takes it."""
        return [self.token_ids, self.flags, *(self.logprobs or ())]


class TritonSampler:
    """Samples one token per row.

    Args:
        eos_token_ids: banned while ``min_tokens`` asks for more, unless the request ignores them.
        vocab_size: of the logits.
        device: where the logits are.
    """

    def __init__(self, eos_token_ids: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self._eos_token_ids, self._vocab_size, self._device = tuple(eos_token_ids), vocab_size, device
        self._vocab = torch.arange(vocab_size, dtype=torch.int32, device=device)

    def sample(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> Sampled:
        """``start`` and ``finish``: waits for the device."""
        pending = self.start(logits, specs, masks)
        return self.finish(pending, [tensor.cpu() for tensor in pending.tensors()], specs)

    def start(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> PendingSample:
        """Enqueue everything.

        Args:
            logits: float32 [rows, vocab]; not changed.
            specs: one per row.
            masks: allowed tokens by row; rows without an entry are unconstrained.
        """
        is_bad = ~torch.isfinite(logits.sum(1))
        edited = self._edited(logits, specs, masks or {})
        if all(_is_greedy(spec.params) for spec in specs):
            best, token_ids = edited.max(1)
            is_banned = (best == -torch.inf).to(torch.int8)
        else:
            token_ids, is_banned = self._draw(edited, specs)
        rows = tuple(row for row, spec in enumerate(specs) if spec.params.num_logprobs is not None)
        logprobs = None
        if rows:
            num_top = max(specs[row].params.num_logprobs or 0 for row in rows)
            index = self._copied(np.array(rows, dtype=np.int64))
            logprobs = logprob_tensors(logits.index_select(0, index), token_ids.index_select(0, index), num_top)
        return PendingSample(token_ids, torch.stack((is_bad.to(torch.int8), is_banned)), rows, logprobs)

    def finish(self, pending: PendingSample, tensors: Sequence[Tensor], specs: Sequence[SampleSpec]) -> Sampled:
        """Turn copies of ``pending.tensors()`` on the host into results."""
        token_ids, flags, *logprobs = tensors
        errors = {row: NON_FINITE if bad else ALL_BANNED for row, (bad, banned) in _flagged(flags)}
        sampled = Sampled(token_ids.tolist(), errors=errors)
        if logprobs:
            num_top = [specs[row].params.num_logprobs or 0 for row in pending.logprob_rows]
            tokens = [sampled.token_ids[row] for row in pending.logprob_rows]
            records = position_records(LogprobTensors(*logprobs), tokens, num_top)
            sampled.logprobs = dict(zip(pending.logprob_rows, records, strict=True))
        return sampled

    # -- stages --------------------------------------------------------------------------------------

    def _edited(self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask]) -> Tensor:
        """Logits after bias, penalties, bans and masks; a copy when anything applies."""
        bias = [(row * self._vocab_size + t, b) for row, s in enumerate(specs) for t, b in s.params.logit_bias.items()]
        banned = [
            row * self._vocab_size + token
            for row, spec in enumerate(specs)
            for token in banned_tokens(spec, self._eos_token_ids, masks.get(row))
        ]
        words = self._words(specs, masks)
        penalised = [row for row, spec in enumerate(specs) if spec.params.has_penalties]
        if not (bias or banned or words or penalised or marked_rows(specs)):
            return logits
        edited = logits.clone()
        flat = edited.view(-1)
        if bias:
            places, values = zip(*bias, strict=True)
            flat.index_add_(0, self._copied(np.array(places)), self._copied(np.array(values, dtype=np.float32)))
        if penalised:
            self._penalise(edited, penalised, specs)
        add_watermark(edited, specs, self._vocab)
        if banned:
            flat.index_fill_(0, self._copied(np.array(banned)), -torch.inf)
        if words:
            rows = self._copied(np.array(list(words), dtype=np.int32))
            sampling.mask(edited, rows, self._copied(np.stack(list(words.values()))))
        return edited

    def _words(self, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask]) -> dict[int, TokenMask]:
        """Bit masks by row: the grammar's, the request's allowed tokens, or what both allow."""
        words: dict[int, TokenMask] = {}
        num_words = -(-self._vocab_size // 32)
        for row, spec in enumerate(specs):
            if spec.params.allowed_token_ids:
                bits = np.zeros(num_words * 32, dtype=np.uint8)
                bits[list(spec.params.allowed_token_ids)] = 1
                words[row] = np.packbits(bits, bitorder="little").view(np.int32)
            if row in masks:
                own = np.ascontiguousarray(masks[row][:num_words])
                words[row] = words[row] & own if row in words else own
        return words

    def _penalise(self, edited: Tensor, rows: list[int], specs: Sequence[SampleSpec]) -> None:
        seen = torch.zeros(len(rows), self._vocab_size, dtype=torch.int32, device=self._device)
        prompts = self._places([specs[row].prompt_ids for row in rows])
        outputs = self._places([specs[row].output_ids for row in rows])
        seen.view(-1).index_fill_(0, prompts, 1)
        seen.view(-1).index_add_(0, outputs, torch.full_like(outputs, 2, dtype=torch.int32))
        penalties = [_penalties(specs[row].params) for row in rows]
        sampling.penalise(
            edited,
            self._copied(np.array(rows, dtype=np.int32)),
            self._copied(np.arange(len(rows), dtype=np.int32)),
            self._copied(np.array(penalties, dtype=np.float32)),
            seen,
        )

    def _places(self, token_ids: list[tuple[int, ...]]) -> Tensor:
        """Flat places of each row's tokens in a table [rows, vocab]."""
        rows = [np.array(ids, dtype=np.int64) + index * self._vocab_size for index, ids in enumerate(token_ids)]
        return self._copied(np.concatenate(rows))

    def _draw(self, edited: Tensor, specs: Sequence[SampleSpec]) -> tuple[Tensor, Tensor]:
        params = [spec.params for spec in specs]
        settings = np.array([_settings(p, self._vocab_size) for p in params], dtype=np.float64)
        min_p = self._copied(np.array([p.min_p for p in params], dtype=np.float32))
        keys = noise_keys([(spec.seed, spec.choice, spec.position) for spec in specs], torch.device("cpu"))
        return sampling.sample(edited, self._copied(settings), min_p, self._copied(keys.numpy()))

    def _copied(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)


def _is_greedy(params: SamplingParams) -> bool:
    return params.is_greedy or params.top_k == 1


def _settings(params: SamplingParams, vocab_size: int) -> tuple[float, float, float]:
    """Temperature, top-k and top-p as the kernel reads them."""
    temperature = 0.0 if _is_greedy(params) else max(params.temperature, sampling.LEAST_TEMPERATURE)
    return temperature, params.top_k if params.top_k < vocab_size else 0, params.top_p


def _penalties(params: SamplingParams) -> tuple[float, float, float]:
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty


def _flagged(flags: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Rows with a flag, and both of their flags."""
    bad, banned = flags.tolist()
    return [(row, pair) for row, pair in enumerate(zip(bad, banned, strict=True)) if any(pair)]
