"""A runner that computes nothing and lets the time pass that a step would take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.clock import FakeClock
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.kv import KvGeometry, KvIdentity, KvRange
from stratos.engine.contract.plan import SampledToken, SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.runner import Runner, RunnerInfo

VOCAB_SIZE = 32768
IDENTITY = KvIdentity(model_digest="simulated", kv_dtype="bfloat16", rope_variant="default", numerics_id="simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Duration of a step, by what it runs. The defaults are of an 8B model in 16 bits on a 24 GB card."""

    step_s: float = 0.018
    """Reading the weights."""
    prompt_token_s: float = 0.000125
    """Each token of a row with several."""
    sequence_s: float = 0.0002
    """Each row with one token: its KV is read."""

    def seconds(self, plan: StepPlan) -> float:
        """Duration of one step."""
        counts = [len(row.token_ids) for row in plan.rows]
        num_prompt_tokens = sum(count for count in counts if count > 1)
        return self.step_s + self.prompt_token_s * num_prompt_tokens + self.sequence_s * counts.count(1)


def output_token(position: int) -> int:
    """The token that follows the one at ``position``, whatever came before: traces know the answers in advance."""
    return (position * 7919 + 13) % VOCAB_SIZE


class SimRunner(Runner):
    """Without pages.

    Args:
        num_blocks: of the KV pool.
        block_size: tokens per block.
        costs: of a step.
        clock: of the worker; a step moves it.
        max_model_len: longest sequence; default: what the pool holds.
    """

    def __init__(
        self, num_blocks: int, block_size: int, costs: StepCosts, clock: FakeClock, max_model_len: int = 0
    ) -> None:
        self._costs, self._clock = costs, clock
        self.info = RunnerInfo(
            identity=IDENTITY,
            geometry=KvGeometry(num_layers=32, num_kv_heads=8, head_dim=128, block_size=block_size, element_bytes=2),
            num_blocks=num_blocks,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len or num_blocks * block_size,
            eos_token_ids=(),
        )

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def sample(self, handle: StepPlan, masks: Any = None, specs: Mapping[int, SampleSpec] | None = None) -> None:
        """Nothing to do."""

    def collect(self, handle: StepPlan) -> StepTokens:
        """Tokens by position, after the time that the step takes."""
        self._clock.advance(self._costs.seconds(handle))
        return StepTokens(
            tokens=[
                SampledToken(row.seq_id, output_token(row.start + len(row.token_ids)))
                for row in handle.rows
                if row.sample is not None
            ]
        )

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        raise NotImplementedError("simulated workers hand nothing off")

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        raise NotImplementedError("simulated workers hand nothing off")

    def load_adapter(self, files: AdapterFiles, is_pinned: Callable[[str], bool] = lambda _: False) -> None:
        raise NotImplementedError("simulated workers have no adapters")

    def resident_adapters(self) -> tuple[str, ...]:
        return ()
