"""Drives a runner by hand-made plans: trivial block allocation, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PlanRow, SampledToken, SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.states import NO_SLOT, StateRow
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.worlds.engine_settings import runner_config

GREEDY = SamplingParams(temperature=0.0)
FULL = SamplingParams(temperature=0.0, num_logprobs=97)
"""Greedy, with the log probability of every token of the tiny models' vocabulary."""
BLOCK_SIZE = 4


def load_runner(path: Path, **changes: Any) -> TorchRunner:
    """A runner with small blocks and a small pool."""
    settings = {"block_size": BLOCK_SIZE, "kv_pool_bytes": 2 << 20, "num_threads": 1, **changes}
    return TorchRunner.load(runner_config(model_path=path, **settings))


class Stream:
    """One sequence: its tokens, blocks and how far it is computed."""

    def __init__(self, seq_id: int, tokens: Sequence[int], blocks: Sequence[int], **spec: Any) -> None:
        self.seq_id, self.tokens, self.blocks = seq_id, list(tokens), tuple(blocks)
        self.num_prompt, self.num_computed = len(self.tokens), 0
        self.params: SamplingParams = spec.pop("params", GREEDY)
        self.adapter: str = spec.pop("adapter", "")
        self.seed: int = spec.pop("seed", 0)
        assert not spec
        self.sampled: list[SampledToken] = []
        self.slots: tuple[int, int] | None = None
        """Of its recurrent state, read and written by turns."""

    def row(self, chunk: int, *, is_sampling: bool = True) -> PlanRow:
        """The next ``chunk`` tokens; samples after the last one."""
        end = min(len(self.tokens), self.num_computed + chunk)
        sample = self._spec() if is_sampling and end == len(self.tokens) else None
        return PlanRow(
            seq_id=self.seq_id,
            token_ids=tuple(self.tokens[self.num_computed : end]),
            start=self.num_computed,
            block_table=self.blocks[: -(-end // BLOCK_SIZE)],
            adapter_digest=self.adapter,
            sample=sample,
            state=self._state(),
        )

    def _state(self) -> StateRow | None:
        if self.slots is None:
            return None
        read, self.slots = self.slots[0], self.slots[::-1]
        return StateRow(read=read if self.num_computed else NO_SLOT, write=self.slots[0])

    def _spec(self) -> SampleSpec:
        prompt, output = self.tokens[: self.num_prompt], self.tokens[self.num_prompt :]
        return SampleSpec(
            key=RequestKey(str(self.seq_id), 0),
            choice=0,
            seed=self.seed,
            position=len(self.tokens),
            params=self.params,
            prompt_ids=tuple(prompt),
            output_ids=tuple(output) if self.params.needs_output_ids else (),
            num_output_tokens=len(output),
        )


class Driver:
    """Runs streams on one runner; blocks are taken from a shuffled list, so tables are not consecutive."""

    def __init__(self, runner: TorchRunner, seed: int = 0) -> None:
        self.runner, self._step, self._next_id = runner, 0, 0
        order = torch.randperm(runner.info.num_blocks, generator=torch.Generator().manual_seed(seed))
        self._free: list[int] = order.tolist()

    def stream(self, tokens: Sequence[int], **spec: Any) -> Stream:
        """A new sequence with blocks for the whole context."""
        count = -(-self.runner.info.max_model_len // BLOCK_SIZE)
        blocks, self._free = self._free[:count], self._free[count:]
        assert len(blocks) == count, "the test's pool is too small"
        self._next_id += 1
        stream = Stream(self._next_id, tokens, blocks, **spec)
        if self.runner.info.num_state_slots:
            stream.slots = 2 * self._next_id, 2 * self._next_id + 1
        return stream

    def step(self, rows: list[tuple[Stream, PlanRow]]) -> StepTokens:
        """Run one plan, advance the streams and append what they sampled."""
        handle = self.runner.launch(StepPlan(step=self._step, rows=tuple(row for _, row in rows)))
        self.runner.sample(handle)
        tokens = self.runner.collect(handle)
        self._step += 1
        by_id = {token.seq_id: token for token in tokens.tokens}
        for stream, row in rows:
            stream.num_computed += len(row.token_ids)
            if stream.seq_id in by_id:
                stream.sampled.append(by_id[stream.seq_id])
                stream.tokens.append(by_id[stream.seq_id].token_id)
        return tokens

    def generate(self, streams: Sequence[Stream], num_tokens: int, chunk: int = 1 << 20) -> None:
        """Run until every stream has ``num_tokens`` tokens: decodes and prefill chunks mixed in each step."""
        while open_streams := [s for s in streams if len(s.sampled) < num_tokens]:
            tokens = self.step([(stream, stream.row(chunk)) for stream in open_streams])
            assert not tokens.errors, tokens.errors


def all_logprobs(token: SampledToken) -> torch.Tensor:
    """Log probabilities of the whole vocabulary where ``token``, requested as ``FULL``, was sampled."""
    assert token.logprobs is not None
    return torch.tensor([t.logprob for t in sorted(token.logprobs.top, key=lambda t: t.token_id)])


def teacher_forced(runner: TorchRunner, ids: list[int], chunk: int, adapter: str = "") -> torch.Tensor:
    """Log probabilities after every token that ends a chunk: [chunks, vocab]."""
    driver = Driver(runner)
    stream = driver.stream(ids, params=FULL, adapter=adapter)
    rows = []
    for end in [*range(chunk, len(ids), chunk), len(ids)]:
        stream.tokens = ids[:end]
        driver.step([(stream, stream.row(chunk))])
        rows.append(all_logprobs(stream.sampled[-1]))
    return torch.stack(rows)
