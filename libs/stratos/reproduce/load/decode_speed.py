"""Decode speed of one stream at a length of its context, with and without a KV cache."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from stratos.engine.contract.results import EngineStatus
from stratos.engine.settings import SchedulerConfig
from stratos.engine.switches import Baselines
from stratos.reproduce.load.asks import LoadAsk
from stratos.reproduce.load.loaded import LoadedModel

LENGTHS = (64, 128, 256, 512, 1024, 2048)
NUM_GAPS = 16
"""Between output tokens; they end at the length in question."""
ARMS = {
    "no cache": Baselines(kv_cache=False),
    "contiguous": Baselines(kv_allocation="contiguous"),
    "paged": Baselines(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpeed:
    """One arm at one length."""

    tokens_per_s: float
    """By the median gap."""
    computed_per_token: float
    """Tokens that the engine computed for each output token after the first."""
    held_bytes: int
    """KV blocks that the sequence had at its end; none of them outlives a step without a cache."""


def decode_at(model: LoadedModel, arm: str, length: int, seed: int) -> DecodeSpeed:
    """Decode the last tokens of a sequence of that length."""
    num_blocks: list[int] = []

    def note(_: float, status: EngineStatus) -> None:
        num_blocks.append(status.blocks.allocated)

    num_prompt_tokens = length - NUM_GAPS
    ask = LoadAsk(num_prompt_tokens=num_prompt_tokens, num_output_tokens=NUM_GAPS + 1)
    run = model.run(SchedulerConfig(max_num_seqs=1, baseline=ARMS[arm]), [ask], seed=seed, on_step=note)
    geometry = model.runner.info.geometry
    return DecodeSpeed(
        tokens_per_s=1 / statistics.median(run.outcomes[0].gaps_s),
        computed_per_token=(run.num_computed - num_prompt_tokens) / NUM_GAPS,
        held_bytes=max(num_blocks) * geometry.block_size * geometry.token_bytes,
    )
