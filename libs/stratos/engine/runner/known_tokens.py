"""A prompt that never changes: what the model makes of it names the bits of weights, kernels and pages.

Its blocks lie behind the pool, so nothing of the scheduler, the ledger or a request is touched.  Seven of its eight
tokens are computed once and stay in the pages; each look computes the eighth over them, and beside it all eight again.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from stratos.core.kv import BATCHED
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import PlanRow, SampleSpec, StepPlan
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.contract.states import NO_SLOT, StateRow
from stratos.engine.runner.forward import Forward
from stratos.engine.runner.step_inputs import build_step_inputs
from stratos.engine.settings import RunnerConfig

NUM_TOKENS = 8
DIGEST_BYTES = 16
_KEPT, _FRESH = 0, 1
"""seq_ids; the tables are of no other sequence."""


def num_spare_blocks(block_size: int) -> int:
    """Blocks behind the pool that two copies of the prompt take."""
    return 2 * -(-NUM_TOKENS // block_size)


def can_probe(config: RunnerConfig, device: torch.device, promised: tuple[str, ...], *, is_streaming: bool) -> bool:
    """A prompt that is known gives the same bits whenever it is computed."""
    is_long_enough = config.max_model_len >= NUM_TOKENS
    return device.type == "cpu" and promised != (BATCHED,) and is_long_enough and not is_streaming


class KnownTokens:
    """One per runner on a CPU; the step thread's, between steps.

    Args:
        info: of the loaded model.
        forward: computes steps.
        first_block: the first of the spare blocks.
        device: of the pages.
    """

    def __init__(self, info: RunnerInfo, forward: Forward, first_block: int, device: torch.device) -> None:
        self._info, self._forward, self._device = info, forward, device
        self._token_ids = tuple((2 * i + 1) * info.vocab_size // (2 * NUM_TOKENS) for i in range(NUM_TOKENS))
        each = num_spare_blocks(info.geometry.block_size) // 2
        self._tables = [info.pages_of(range(begin, begin + each)) for begin in (first_block, first_block + each)]
        self._is_kept = False

    def forget(self) -> None:
        """The pages were given back: compute all tokens at the next look."""
        self._is_kept = False

    def digest(self) -> bytes:
        """Name of the hidden states of all tokens, and of the logits where the model has some."""
        if not self._is_kept:
            self._run(self._row(_KEPT, 0, NUM_TOKENS - 1))
            self._is_kept = True
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for tensor in self._run(self._row(_KEPT, NUM_TOKENS - 1, NUM_TOKENS), self._row(_FRESH, 0, NUM_TOKENS)):
            found.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return found.digest()

    def _run(self, *rows: PlanRow) -> list[Tensor]:
        plan, tables = StepPlan(step=0, rows=rows), KeptTables()
        tables.apply(plan)
        info = self._info
        inputs = build_step_inputs(plan, info.vocab_size, info.max_model_len, lambda _: None, self._device, tables)
        result = self._forward.run(inputs)
        hidden = result.hidden[: plan.num_tokens]
        return [hidden] if result.logits is None else [hidden, result.logits]

    def _row(self, seq_id: int, begin: int, end: int) -> PlanRow:
        spec = SampleSpec(
            key=RequestKey("known tokens", 0),
            choice=0,
            seed=0,
            position=end,
            params=SamplingParams(temperature=0.0, max_tokens=1),
            prompt_ids=self._token_ids,
            output_ids=(),
            num_output_tokens=0,
        )
        return PlanRow(
            seq_id=seq_id,
            token_ids=self._token_ids[begin:end],
            start=begin,
            block_table=self._tables[seq_id],
            state=self._state(begin, end) if self._info.num_state_slots else None,
            sample=spec if self._info.can_generate else None,
        )

    def _state(self, begin: int, end: int) -> StateRow:
        """The slot behind those of sequences has what the kept tokens left."""
        kept = self._info.num_state_slots
        return StateRow(read=kept if begin else NO_SLOT, write=kept if end < NUM_TOKENS else NO_SLOT)
