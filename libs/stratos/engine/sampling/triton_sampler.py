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

from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.memory.copies import to_device
from stratos.engine.sampling.counter_rng import noise_keys
from stratos.engine.sampling.filters import kernel_settings, takes_best
from stratos.engine.sampling.logits_processors import RowChanges, TokenMask, needs_processing, row_changes
from stratos.engine.sampling.logprobs import LogprobTensors, logprob_tensors, position_records
from stratos.engine.sampling.sampler import Sampled
from stratos.engine.sampling.watermark import add_watermark
from stratos.engine.triton_kernels import sampling, split_sampling


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
        """Values for the host, in the order in which ``finish`` takes them."""
        return [self.token_ids, self.flags, *(self.logprobs or ())]


class TritonSampler:
    """Samples one token per row.

    Args:
        eos_token_ids: banned while ``min_tokens`` asks for more, unless the request ignores them.
        vocab_size: of the logits.
        device: where the logits are.
        is_split: several programs draw for one row, instead of one; the tokens are the same.
    """

    def __init__(
        self, eos_token_ids: Sequence[int], vocab_size: int, device: torch.device, *, is_split: bool = True
    ) -> None:
        self._eos_token_ids, self._vocab_size, self._device = tuple(eos_token_ids), vocab_size, device
        self._is_split = is_split
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
        processed = self._processed(logits, specs, masks or {})
        if all(takes_best(spec.params) for spec in specs):
            best, token_ids = processed.max(1)
            is_banned = (best == -torch.inf).to(torch.int8)
        else:
            token_ids, is_banned = self._draw(processed, specs)
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

    def _processed(self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask]) -> Tensor:
        """Logits after all processors; a copy when anything applies."""
        changes = {
            row: row_changes(spec, self._eos_token_ids, self._vocab_size, masks.get(row))
            for row, spec in enumerate(specs)
            if needs_processing(spec) or row in masks
        }
        if not changes:
            return logits
        processed, vocab_size = logits.clone(), self._vocab_size
        flat = processed.view(-1)
        # a token of a row is one place in the flat table: row 2, token 5 of a vocabulary of 100 is 205
        bias = [(row * vocab_size + token, b) for row, c in changes.items() for token, b in c.bias.items()]
        if bias:
            places, values = zip(*bias, strict=True)
            flat.index_add_(0, self._copied(np.array(places)), self._copied(np.array(values, dtype=np.float32)))
        self._penalise(processed, changes, specs)
        add_watermark(processed, specs, self._vocab)
        if banned := [row * vocab_size + token for row, c in changes.items() for token in c.banned]:
            flat.index_fill_(0, self._copied(np.array(banned)), -torch.inf)
        words = {row: c.allowed for row, c in changes.items() if c.allowed is not None}
        if words:
            rows = self._copied(np.array(list(words), dtype=np.int32))
            sampling.mask(processed, rows, self._copied(np.stack(list(words.values()))))
        return processed

    def _penalise(self, processed: Tensor, changes: Mapping[int, RowChanges], specs: Sequence[SampleSpec]) -> None:
        penalties = {row: c.penalties for row, c in changes.items() if c.penalties is not None}
        if not penalties:
            return
        seen = torch.zeros(len(penalties), self._vocab_size, dtype=torch.int32, device=self._device)
        prompts = self._places([specs[row].prompt_ids for row in penalties])
        outputs = self._places([specs[row].output_ids for row in penalties])
        # one number per token: its lowest bit says that the prompt has it, the others count it in the output
        seen.view(-1).index_fill_(0, prompts, 1)
        seen.view(-1).index_add_(0, outputs, torch.full_like(outputs, 2, dtype=torch.int32))
        sampling.penalise(
            processed,
            self._copied(np.array(list(penalties), dtype=np.int32)),
            self._copied(np.arange(len(penalties), dtype=np.int32)),
            self._copied(np.array(list(penalties.values()), dtype=np.float32)),
            seen,
        )

    def _places(self, token_ids: list[tuple[int, ...]]) -> Tensor:
        """Flat places of each row's tokens in a table [rows, vocab]."""
        rows = [np.array(ids, dtype=np.int64) + index * self._vocab_size for index, ids in enumerate(token_ids)]
        return self._copied(np.concatenate(rows))

    def _draw(self, processed: Tensor, specs: Sequence[SampleSpec]) -> tuple[Tensor, Tensor]:
        settings = np.array([kernel_settings(spec.params, self._vocab_size) for spec in specs], dtype=np.float64)
        keys = noise_keys([(spec.seed, spec.choice, spec.position) for spec in specs], torch.device("cpu"))
        if not self._is_split:
            return sampling.sample(processed, self._copied(settings), self._copied(keys.numpy()))
        is_truncated = bool(((settings[:, 1] > 0) | (settings[:, 2] < 1)).any())
        return split_sampling.sample(
            processed, self._copied(settings), self._copied(keys.numpy()), is_truncated=is_truncated
        )

    def _copied(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)


def _flagged(flags: Tensor) -> list[tuple[int, tuple[int, int]]]:
    """Rows with a flag, and both of their flags."""
    bad, banned = flags.tolist()
    return [(row, pair) for row, pair in enumerate(zip(bad, banned, strict=True)) if any(pair)]
