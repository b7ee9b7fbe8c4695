"""The sampler by one call of the C++ kernels for a batch: the stages and tokens of ``sampler``, on a CPU.

What a request asks for at every position is laid out once (``RequestPart``); a step adds the key of its noise, and what
depends on the tokens so far.  Log probabilities may differ from those of torch in the last bit: their sum is float64.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratos.core.requests.records import TokenLogprob
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.requests.watermark import list_key
from stratos.core.rng import noise_key
from stratos.engine.contract.plan import ALL_BANNED, NON_FINITE, SampleSpec
from stratos.engine.layers.ops import LayerOps
from stratos.engine.native.library import NativeLibrary
from stratos.engine.native.structures import SampleRow
from stratos.engine.sampling.filters import kernel_settings
from stratos.engine.sampling.logits_processors import TokenMask, allowed_tokens, banned_tokens
from stratos.engine.sampling.logprobs import position_record
from stratos.engine.sampling.sampler import Sampled, Sampler, is_plain_greedy
from stratos.engine.sampling.seen_tokens import MIN_KEPT, SeenTable
from stratos.engine.sampling.watermark import context_of

ERRORS = {1: NON_FINITE, 2: ALL_BANNED}
"""Status of a row -> what it says."""
NO_TOKEN = 3
"""Status of a row with a token id beyond the vocabulary: requests are checked before they come here, so it is a bug."""


class RequestPart:
    """A row as far as it is the same at every position of a request."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self.params = params
        temperature, top_k, top_p, min_p = kernel_settings(params, vocab_size)
        bias = params.logit_bias
        self._bias_ids = np.array(list(bias), dtype=np.int64)
        self._biases = np.array(list(bias.values()), dtype=np.float32)
        self.allowed = allowed_tokens(params.allowed_token_ids, vocab_size, None)
        self.row = SampleRow(
            temperature=temperature,
            top_k=int(top_k),
            top_p=top_p,
            # as ``filters`` has it, to the last bit: it decides which tokens lie below
            least=float(torch.tensor([min_p], dtype=torch.float32).log()) if min_p > 0 else -math.inf,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            num_top=-1 if params.num_logprobs is None else min(params.num_logprobs, vocab_size),
            num_biases=len(bias),
            bias_ids=self._bias_ids.ctypes.data,
            biases=self._biases.ctypes.data,
            allowed=None if self.allowed is None else self.allowed.ctypes.data,
        )
        if (mark := params.watermark) is not None:
            self.row.mark_delta, self.row.mark_threshold = mark.delta, mark.threshold
        self.can_ban = bool(params.bad_sequences or params.min_tokens)


class NativeSampler(Sampler):
    """Samples one token per row of float32 logits in host memory.

    Args:
        library: the compiled kernels.
        eos_token_ids: banned while ``min_tokens`` asks for more, unless the request ignores them.
        vocab_size: of the logits.
        ops: takes the best token of a batch that wants nothing else.
    """

    def __init__(
        self, library: NativeLibrary, eos_token_ids: Sequence[int], vocab_size: int, ops: LayerOps | None = None
    ) -> None:
        super().__init__(eos_token_ids, vocab_size, torch.device("cpu"), ops)
        self._library, self._vocab_size = library, vocab_size
        self._num_words = -(-vocab_size // 32)
        self._thread_bytes = library.sample_bytes(vocab_size)
        self._scratch = np.empty(0, dtype=np.uint8)
        self._parts: OrderedDict[int, RequestPart] = OrderedDict()
        self._seen = SeenTable()

    def sample(
        self, logits: Tensor, specs: Sequence[SampleSpec], masks: Mapping[int, TokenMask] | None = None
    ) -> Sampled:
        if not masks and all(is_plain_greedy(spec) for spec in specs):
            return self.greedy(logits)
        logits = logits.contiguous()
        assert (logits.dtype, *logits.shape) == (torch.float32, len(specs), self._vocab_size)
        rows, masks = (SampleRow * len(specs))(), masks or {}
        block, addresses = self._lay_out(masks)
        held: list[Any] = [block]
        top_logprobs, top_ids = self._top_arrays(specs)
        first, row_bytes = logits.data_ptr(), logits.stride(0) * logits.element_size()
        for index, spec in enumerate(specs):
            part = self._part(spec.params, len(specs))
            rows[index] = part.row
            row = rows[index]
            row.logits = first + index * row_bytes
            if index in addresses:
                row.allowed = addresses[index]
            if part.row.num_top > 0:
                row.top_logprobs, row.top_ids = top_logprobs[index].ctypes.data, top_ids[index].ctypes.data
            self._fill(row, spec, part, masks.get(index), held)
            if spec.params.has_penalties:
                seen = self._seen.of(spec, len(specs))
                row.num_seen, row.seen_ids, row.counts = len(seen), seen.ids.ctypes.data, seen.counts.ctypes.data
                held.append((seen.ids, seen.counts))
        threads = torch.get_num_threads()
        if len(self._scratch) < threads * self._thread_bytes:
            self._scratch = np.empty(threads * self._thread_bytes, dtype=np.uint8)
        self._library.sample(rows, len(specs), self._vocab_size, self._scratch.ctypes.data, threads)
        return _sampled(rows, top_logprobs, top_ids)

    def _part(self, params: SamplingParams, num_rows: int) -> RequestPart:
        """Layout of a request's parameters; they are kept by their address, and with it."""
        part = self._parts.get(id(params))
        if part is None:
            part = self._parts[id(params)] = RequestPart(params, self._vocab_size)
            while len(self._parts) > max(MIN_KEPT, 2 * num_rows):
                self._parts.popitem(last=False)
        else:
            self._parts.move_to_end(id(params))
        return part

    def _fill(
        self, row: SampleRow, spec: SampleSpec, part: RequestPart, mask: TokenMask | None, held: list[Any]
    ) -> None:
        """Set what changes from position to position; arrays that the row points to go into ``held``."""
        if row.temperature:
            row.key_low, row.key_high = noise_key(spec.seed, spec.choice, spec.position)
        if part.can_ban and (banned := banned_tokens(spec, self._eos_token_ids, mask)):
            array = np.array(banned, dtype=np.int64)
            row.num_banned, row.banned = len(banned), array.ctypes.data
            held.append(array)
        if mask is not None and part.allowed is not None:
            allowed = mask[: self._num_words] & part.allowed
            row.allowed = allowed.ctypes.data
            held.append(allowed)
        if (mark := spec.params.watermark) is not None:
            row.mark_low, row.mark_high = list_key(mark, context_of(spec, mark))

    def _lay_out(self, masks: Mapping[int, TokenMask]) -> tuple[Any, dict[int, int]]:
        """Masks in one block, whose address is asked for once, as that takes longer than a copy; addresses by row."""
        block = np.empty((len(masks), self._num_words), dtype=np.int32)
        for own, mask in zip(block, masks.values(), strict=True):
            own[:] = mask[: self._num_words]
        first, size = block.ctypes.data, block.shape[1] * block.itemsize
        return block, {index: first + place * size for place, index in enumerate(masks)}

    def _top_arrays(self, specs: Sequence[SampleSpec]) -> tuple[Any, Any]:
        """Room for the most likely tokens of each row."""
        width = min(max(spec.params.num_logprobs or 0 for spec in specs), self._vocab_size)
        return np.empty((len(specs), width), dtype=np.float32), np.empty((len(specs), width), dtype=np.int64)


def _sampled(rows: ctypes.Array[SampleRow], top_logprobs: Any, top_ids: Any) -> Sampled:
    sampled = Sampled([row.token for row in rows])
    for index, row in enumerate(rows):
        if row.status == NO_TOKEN:
            raise IndexError("a token id of a request is beyond the vocabulary")
        if row.status:
            sampled.errors[index] = ERRORS[row.status]
        elif row.num_top >= 0:
            count = row.num_top
            token = TokenLogprob(row.token, row.logprob, row.rank)
            best = top_logprobs[index, :count].tolist(), top_ids[index, :count].tolist()
            sampled.logprobs[index] = position_record(token, *best, count)
    return sampled
