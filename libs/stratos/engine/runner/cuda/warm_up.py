"""Steps without a request that compile the kernels which captured decode steps do not run, so that none waits for it.

Two mixed steps, whose rows all lie in block 0, run before the pool has any owner: prompts, decodes of a batch, every
stage of the sampler.  What they wrote is wiped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PlanRow, SampleSpec, StepPlan
from stratos.engine.contract.runner import Runner
from stratos.engine.layers.moe import MixtureOfExperts
from stratos.engine.layers.quantised_linear import ReorderedLinear
from stratos.engine.layers.triton_linear import TritonCodes
from stratos.engine.models.decoder import Decoder
from stratos.engine.runner.cuda.experts import warm_up_experts
from stratos.engine.triton_kernels.codes.products import FEW_ROWS, MANY_ROWS

NUM_DECODES = 3
"""Rows of one token next to the prompt: as many as no captured batch has, for its number of context parts."""
ALL_STAGES = SamplingParams(
    temperature=0.8, top_k=3, top_p=0.9, min_p=0.01, repetition_penalty=1.1, logit_bias={0: 1.0}, num_logprobs=1,
    bad_sequences=((1,),),
)  # fmt: skip
GREEDY = SamplingParams(temperature=0.0)


def warm_up(runner: Runner) -> None:
    """Run the steps.

    Raises:
        Exception: what the runner raises: it cannot compute at all.
    """
    info = runner.info
    for params in (ALL_STAGES, GREEDY) if info.can_generate else (None,):
        rows = [_row(-2 - index, 1, params) for index in range(NUM_DECODES)]
        rows.append(_row(-2 - NUM_DECODES, min(info.geometry.block_size, info.max_model_len), params))
        handle = runner.launch(StepPlan(step=0, rows=tuple(rows)))
        words = np.full(-(-info.vocab_size // 32), -1, dtype=np.int32)
        runner.sample(handle, {rows[0].seq_id: words} if params is ALL_STAGES else None)
        runner.collect(handle)


def warm_up_products(decoder: Decoder) -> None:
    """Compile products whose kernel depends on the number of rows: grouped experts, and weights that stay codes."""
    warm_up_experts(decoder)
    for codes in {codes.variant: codes for codes in _codes_of(decoder)}.values():
        for num_rows in (FEW_ROWS, MANY_ROWS):
            codes(decoder.embedding.new_zeros(num_rows, codes.weight.shape[1]))


def _codes_of(decoder: Decoder) -> Iterator[TritonCodes]:
    mlps = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, MixtureOfExperts)]
    experts = [linear for mlp in mlps for expert in mlp.all_mlps for linear in (expert.gate_up, expert.down)]
    for linear in (*decoder.linears(), *experts):
        product = linear.product if isinstance(linear, ReorderedLinear) else linear
        if isinstance(product, TritonCodes):
            yield product


def _row(seq_id: int, num_tokens: int, params: SamplingParams | None) -> PlanRow:
    spec = None if params is None else SampleSpec(
        key=RequestKey("", 0), choice=0, seed=0, position=num_tokens, params=params, prompt_ids=(0,), output_ids=(0,),
        num_output_tokens=1,
    )  # fmt: skip
    return PlanRow(seq_id=seq_id, token_ids=(0,) * num_tokens, start=0, block_table=(0,), sample=spec)
