"""A model as an engine runs it, asked for log probabilities of text and for greedy completions.

Tokens go through the runner's own plans: quantised layers, kernels and KV pages are those that answer requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stratos.common.errors import BadRequest, Internal
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PlanRow, PromptTargets, SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.states import NO_SLOT, StateRow
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.quality.held_out import TokenWindow

MAX_STREAMS = 16
_GREEDY = SamplingParams(temperature=0.0)


class TokenScores(NamedTuple):
    """Scores of a model for each token; arrays are [windows, tokens scored in each]."""

    logprobs: np.ndarray
    """float64, natural, of the text's tokens."""
    hits: np.ndarray
    """bool: the text's token is the likeliest one."""
    certainty: np.ndarray
    """float64: log probability of the likeliest token."""


class ScoredModel:
    """Use ``ScoredModel.load``."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner, self._step, self._next_id = runner, 0, 0

    @classmethod
    def load(cls, config: RunnerConfig, max_tokens: int) -> ScoredModel:
        """Load a model for sequences of at most ``max_tokens``.

        Raises:
            InvalidCheckpoint: as a worker would.
            BadRequest: the model's context is shorter.
        """
        runner = TorchRunner.load(config, scheduler=SchedulerConfig(max_num_seqs=MAX_STREAMS))
        if runner.info.max_model_len < max_tokens:
            raise BadRequest(
                f"{config.model_path} has a context of {runner.info.max_model_len} tokens, {max_tokens} are needed",
                param="--window",
            )
        if runner.info.num_blocks < MAX_STREAMS * -(-max_tokens // runner.info.geometry.block_size):
            raise BadRequest("the KV pool that fits here is too small; make windows smaller", param="--window")
        if 0 < runner.info.num_state_slots < 2 * MAX_STREAMS:
            raise BadRequest(f"{2 * MAX_STREAMS} states are needed; set state_slots", param="--window")
        return cls(runner)

    @property
    def description(self) -> dict[str, Any]:
        """Facts of the model, for reports."""
        info = self._runner.info
        return {
            "model": str(info.model_path),
            "digest": info.identity.model_digest,
            "quantization": info.quantization,
            "kv_dtype": info.identity.kv_dtype,
            "numerics_id": info.identity.numerics_id,
            "step_weight_bytes": info.step_weight_bytes,
            "kv_token_bytes": info.geometry.token_bytes,
        }

    def score(self, windows: Sequence[TokenWindow]) -> TokenScores:
        """Score every token of each window but its first; windows are of equal length."""
        logprobs, hits, certainty = [], [], []
        for window in windows:
            seq_id, ids = self._new_id(), window.token_ids
            targets = PromptTargets(0, ids[1:], 1)
            row = PlanRow(seq_id=seq_id, token_ids=ids, start=0, block_table=self._blocks(0, len(ids)), targets=targets)
            entries = self._run([row]).prompt_logprobs[seq_id]
            logprobs.append([entry.sampled.logprob for entry in entries])
            hits.append([entry.sampled.token_id == entry.top[0].token_id for entry in entries])
            certainty.append([entry.top[0].logprob for entry in entries])
        return TokenScores(np.array(logprobs), np.array(hits, dtype=np.bool_), np.array(certainty))

    def complete(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Greedy continuations of ``num_tokens`` each, or up to the model's end of text."""
        found: list[list[int]] = []
        for begin in range(0, len(prompts), MAX_STREAMS):
            streams = [_Completion(self._new_id(), list(prompt)) for prompt in prompts[begin : begin + MAX_STREAMS]]
            open_streams = list(enumerate(streams))
            while open_streams:
                rows = [self._row(slot, stream) for slot, stream in open_streams]
                tokens = {token.seq_id: token.token_id for token in self._run(rows).tokens}
                for _, stream in open_streams:
                    stream.take(tokens[stream.seq_id], self._runner.info.eos_token_ids)
                open_streams = [
                    pair for pair in open_streams if not pair[1].has_ended and len(pair[1].output) < num_tokens
                ]
            found += [stream.output for stream in streams]
        return found

    def forget(self) -> None:
        """Leave the runner as it was: an engine may number its own sequences from the first one on."""
        ended = tuple(range(1, self._next_id + 1))
        self._runner.collect(self._runner.launch(StepPlan(step=self._step, rows=(), ended=ended)))

    def _run(self, rows: list[PlanRow]) -> StepTokens:
        handle = self._runner.launch(StepPlan(step=self._step, rows=tuple(rows)))
        self._runner.sample(handle)
        tokens = self._runner.collect(handle)
        self._step += 1
        if tokens.errors:
            raise Internal(f"the model cannot be scored: {next(iter(tokens.errors.values()))}")
        return tokens

    def _row(self, slot: int, stream: _Completion) -> PlanRow:
        row = stream.row(self._blocks(slot, len(stream.token_ids)))
        if self._runner.info.num_state_slots:  # two of each stream, written by turns
            read, write = 2 * slot + stream.num_output % 2, 2 * slot + (stream.num_output + 1) % 2
            row.state = StateRow(read=read if row.start else NO_SLOT, write=write)
        return row

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _blocks(self, slot: int, num_tokens: int) -> tuple[int, ...]:
        """Blocks of a sequence: each of the streams at once has its own run of the pool."""
        first = slot * (self._runner.info.num_blocks // MAX_STREAMS)
        num_blocks = -(-num_tokens // self._runner.info.geometry.block_size)
        return self._runner.info.pages_of(range(first, first + num_blocks))


@dataclass(slots=True)
class _Completion:
    seq_id: int
    token_ids: list[int]
    """Prompt and output."""
    num_computed: int = 0
    num_output: int = 0
    has_ended: bool = False

    @property
    def output(self) -> list[int]:
        return self.token_ids[len(self.token_ids) - self.num_output :]

    def row(self, blocks: tuple[int, ...]) -> PlanRow:
        """Row of the tokens that are not computed yet, sampled after the last one."""
        spec = SampleSpec(
            key=RequestKey(str(self.seq_id), 0), choice=0, seed=0, position=len(self.token_ids), params=_GREEDY,
            prompt_ids=(), output_ids=(), num_output_tokens=self.num_output,
        )  # fmt: skip
        ids = tuple(self.token_ids[self.num_computed :])
        return PlanRow(seq_id=self.seq_id, token_ids=ids, start=self.num_computed, block_table=blocks, sample=spec)

    def take(self, token_id: int, ends: Sequence[int]) -> None:
        """The next token; one that ends the text is not kept."""
        self.num_computed = len(self.token_ids)
        self.has_ended = token_id in ends
        if not self.has_ended:
            self.token_ids.append(token_id)
            self.num_output += 1
