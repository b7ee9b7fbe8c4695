"""A runner that is arithmetic by hand, and proves which worker computed what.

The "KV" of the token ``t`` at position ``p``, computed by a worker of weight ``w``, is ``w * (t + 1) + p``.
The next token after position ``p`` is ``(sum of KV over positions 0..p + 31 * w) mod vocab_size`` with the
weight ``w`` of the worker that samples, plus an adapter term.  So a different prefill worker, a different
decode worker or one altered block changes the tokens; ``fake_generate`` computes what must come out.  An example with
a vocabulary of 100, the prompt 5, 7, 9, a prefill worker of weight 2 and a decode worker of weight 3:

    handed off   KV of 5 at 0 is 2 * 6 + 0 = 12, of 7 at 1 is 2 * 8 + 1 = 17
    first token  KV of 9 at 2 is 3 * 10 + 2 = 32; (12 + 17 + 32 + 31 * 3) mod 100 = 54
    second       KV of 54 at 3 is 3 * 55 + 3 = 168; (12 + 17 + 32 + 168 + 31 * 3) mod 100 = 22

A token that a penalised request has emitted already gives way to the next one that it has not, so a missing history
changes tokens.
With overlap every launched plan executes as late as the contract allows, when it is collected: a block that is
given away under a launched plan is overwritten, and changes tokens.
It has settable step time and fault injection, and ships so that a platform can be tried without a model.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import Ge, Interval

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.files.model_files import read_model_files
from stratos.core.kv import KvGeometry, KvIdentity, KvRange
from stratos.core.requests.records import PositionLogprobs, TokenLogprob
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import PlanRow, PooledRow, SampledToken, SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.results import WeightCheck
from stratos.engine.contract.runner import Runner, RunnerInfo
from stratos.engine.fake.pooling import EMBEDDING_SIZE, fake_pool

KV_BYTES = 8
FINISHED_EARLY = "the fake runner was told to fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeConfig:
    """Shape and behaviour of a fake runner."""

    worker_weight: int = 1
    """Differs per worker, so that tokens tell which worker computed them."""
    model_path: Path | None = None
    """Model folder whose tokenizer grammars need; ``FakeRunner.load`` takes vocabulary, context and digest from it."""
    num_blocks: Annotated[int, Ge(1)] = 256
    """KV blocks."""
    num_host_blocks: Annotated[int, Ge(0)] = 0
    """KV blocks in host memory."""
    block_size: Annotated[int, Interval(ge=1, le=1024)] = 16
    """Tokens per KV block."""
    vocab_size: Annotated[int, Ge(2)] = 4096
    """Vocabulary, without a model folder."""
    max_model_len: Annotated[int, Ge(2)] = 4096
    """Context, without a model folder."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an output, without a model folder."""
    model_digest: str = "fake"
    """Digest that workers and gateway compare; with a model folder, as `stratos up` hands it over, else computed."""
    tells_models: bool = False
    """Tokens and log probabilities differ by model, so that they tell which one computed them."""
    crash_model: str = ""
    """The process dies as it loads the model of this digest."""
    can_generate: bool = True
    """Off makes a model that embeds and has no output layer."""
    overlap: bool = False
    """Execute a plan when it is collected, and let the scheduler run one step ahead."""
    window: Annotated[int, Ge(0)] = 0
    """Positions that a token sums over, up to its own; 0: all."""
    num_sinks: Annotated[int, Ge(0)] = 0
    """First positions that it sums over, too, where there is a window."""
    swap_block_s: Annotated[float, Ge(0)] = 0.0
    """Duration of the copy of one block between the tiers."""
    step_s: Annotated[float, Ge(0)] = 0.0
    """Minimum duration of a step."""
    token_s: Annotated[float, Ge(0)] = 0.0
    """Duration added per token of a step, so that prefill takes time."""
    fail_at_step: int | None = None
    """Raise in ``launch`` of this step: the step loop dies."""
    crash_position: int | None = None
    """The process dies when a row runs the token at this position."""
    poison_token: int | None = None
    """A row that runs this token fails alone."""
    wake_s: Annotated[float, Ge(0)] = 0.0
    """Duration of waking."""


@dataclass(slots=True, eq=False)
class _Handle:
    plan: StepPlan
    specs: Mapping[int, SampleSpec] = field(default_factory=dict)
    masks: Mapping[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    is_sampled: bool = False
    tables: dict[int, list[int]] = field(default_factory=dict)
    """Block tables by seq_id, as they were when the plan was launched."""
    token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By seq_id, placeholders filled in."""
    tokens: StepTokens = field(default_factory=StepTokens)


def fake_kv(weight: int, token: int, position: int) -> int:
    """KV of one token."""
    return weight * (token + 1) + position


def adapter_term(adapter_digest: str) -> int:
    """Summand of an adapter; 0 for the base model."""
    return hashlib.sha256(adapter_digest.encode()).digest()[0] + 1 if adapter_digest else 0


def fake_generate(
    prompt_ids: Sequence[int],
    num_tokens: int,
    *,
    prefill_weight: int,
    decode_weight: int,
    num_prefilled: int | None = None,
    vocab_size: int = 4096,
    adapter_digest: str = "",
    window: int = 0,
    num_sinks: int = 0,
) -> list[int]:
    """Tokens that must come out when positions below ``num_prefilled`` (default: all but the last) came by hand-off."""
    boundary = len(prompt_ids) - 1 if num_prefilled is None else num_prefilled
    tokens = list(prompt_ids)
    entries = [fake_kv(prefill_weight if p < boundary else decode_weight, t, p) for p, t in enumerate(tokens)]
    for _ in range(num_tokens):
        total = sum(entries[position] for position in visible(len(entries), window, num_sinks))
        token = (total + 31 * decode_weight + adapter_term(adapter_digest)) % vocab_size
        entries.append(fake_kv(decode_weight, token, len(tokens)))
        tokens.append(token)
    return tokens[len(prompt_ids) :]


def visible(num_tokens: int, window: int, num_sinks: int) -> list[int]:
    """Positions that the last of ``num_tokens`` tokens sees."""
    begin = max(0, num_tokens - window) if window else 0
    return [*range(min(num_sinks, begin)), *range(begin, num_tokens)]


def next_allowed(mask: Sequence[int], token: int, vocab_size: int) -> int:
    """The first token from ``token`` on, wrapping around, whose bit is set in the words of ``mask``."""
    for step in range(vocab_size):
        candidate = (token + step) % vocab_size
        if int(mask[candidate // 32]) >> (candidate % 32) & 1:
            return candidate
    return token


def _score(row: PlanRow, term: int) -> list[PositionLogprobs]:
    """The log probability of a prompt token is minus its place, so that a missing or doubled one shows."""
    assert row.targets is not None
    entries = []
    for place, token in enumerate(row.targets.token_ids, row.start + row.targets.begin + 1):
        scored = TokenLogprob(token, -float(place) - term / 256, 1)
        entries.append(PositionLogprobs(scored, (scored,) if row.targets.num_top else ()))
    return entries


class FakeRunner(Runner):
    """Runs plans over pages that hold one int64 per token."""

    can_verify = True

    def __init__(self, config: FakeConfig) -> None:
        self.config = config
        self._pages = memoryview(bytearray(config.num_blocks * config.block_size * KV_BYTES)).cast("q")
        self._host = memoryview(bytearray(max(config.num_host_blocks, 1) * config.block_size * KV_BYTES)).cast("q")
        self._host_sums: dict[int, int] = {}
        self._adapters: dict[str, None] = {}
        self.block_tables = KeptTables()
        self._pending: deque[_Handle] = deque()
        self._previous: dict[int, int] = {}
        self.info = RunnerInfo(
            identity=KvIdentity(
                model_digest=config.model_digest, kv_dtype="int64", rope_variant="none", numerics_id="fake"
            ),
            geometry=KvGeometry(
                num_layers=1, num_kv_heads=1, head_dim=1, block_size=config.block_size, element_bytes=KV_BYTES // 2
            ),
            num_blocks=config.num_blocks,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=config.eos_token_ids,
            model_path=config.model_path,
            can_generate=config.can_generate,
            embedding_size=EMBEDDING_SIZE,
            num_host_blocks=config.num_host_blocks,
            window=config.window,
            num_sinks=config.num_sinks,
            overlap=config.overlap,
            can_probe=True,
        )
        self._model_term = adapter_term(config.model_digest) if config.tells_models else 0
        self._noted_weight: int | None = None

    @classmethod
    def load(cls, config: FakeConfig) -> Self:
        """A runner with the vocabulary, context, end tokens and digest of the model folder, where one is given.

        Raises:
            InvalidCheckpoint: the folder cannot be read.
        """
        if config.model_path is None:
            return cls(config)
        files = read_model_files(config.model_path, config.model_digest)
        model = replace(
            config,
            vocab_size=files.vocab_size,
            max_model_len=files.max_model_len,
            eos_token_ids=files.eos_token_ids,
            model_digest=files.digest,
        )
        if model.model_digest == config.crash_model:
            os.kill(os.getpid(), signal.SIGKILL)
        return cls(model)

    def launch(self, plan: StepPlan) -> _Handle:
        """Copy blocks, write KV of all rows."""
        if plan.step == self.config.fail_at_step:
            raise RuntimeError(FINISHED_EARLY)
        self.block_tables.apply(plan)
        handle = _Handle(plan, tables={row.seq_id: self.block_tables.of(row.seq_id).tolist() for row in plan.rows})
        if self.config.overlap:
            assert len(self._pending) < 2, "more plans are launched than the contract allows"
            self._pending.append(handle)
        else:
            self._forward(handle)
        return handle

    def _forward(self, handle: _Handle) -> None:
        plan, size = handle.plan, self.config.block_size
        delay = self.config.step_s + self.config.token_s * plan.num_tokens
        if delay:
            time.sleep(delay)
        self._swap(handle)
        for source, target in plan.copies:
            self._pages[target * size : (target + 1) * size] = self._pages[source * size : (source + 1) * size]
        for row in plan.rows:
            if self.config.crash_position in range(row.start, row.start + len(row.token_ids)):
                os.kill(os.getpid(), signal.SIGKILL)
            known = row.token_ids[:-1] if row.continues else row.token_ids
            token_ids = (*known, self._previous.get(row.seq_id, 0)) if row.continues else known
            handle.token_ids[row.seq_id] = token_ids
            for position, token in enumerate(token_ids, row.start):
                slot = self._slot(handle.tables[row.seq_id], position)
                self._pages[slot] = fake_kv(self.config.worker_weight, token, position)

    def _swap(self, handle: _Handle) -> None:
        plan, size = handle.plan, self.config.block_size
        for block, slot in plan.swap_outs:
            self._host[slot * size : (slot + 1) * size] = self._pages[block * size : (block + 1) * size]
            self._host_sums[slot] = sum(self._host[slot * size : (slot + 1) * size])
        damaged = []
        for slot, block in plan.swap_ins:
            content = self._host[slot * size : (slot + 1) * size]
            self._pages[block * size : (block + 1) * size] = content
            if sum(content) != self._host_sums[slot]:
                damaged.append(slot)
        handle.tokens.damaged_slots = tuple(damaged)
        handle.tokens.swap_s = self.config.swap_block_s * (len(plan.swap_outs) + len(plan.swap_ins))
        if handle.tokens.swap_s:
            time.sleep(handle.tokens.swap_s)

    def read_slot(self, slot: int) -> memoryview | None:
        """KV of a block in host memory, 8 bytes a token."""
        content = self._host[slot * self.config.block_size : (slot + 1) * self.config.block_size]
        return content.cast("B") if sum(content) == self._host_sums[slot] else None

    def fill_slot(self, slot: int, content: bytes) -> None:
        size = self.config.block_size
        self._host[slot * size : (slot + 1) * size] = memoryview(content).cast("q")
        self._host_sums[slot] = sum(self._host[slot * size : (slot + 1) * size])

    def sample(self, handle: _Handle, masks: Any = None, specs: Mapping[int, SampleSpec] | None = None) -> None:
        """Sum the pages of every row that samples or pools."""
        handle.specs, handle.masks, handle.is_sampled = specs or {}, masks or {}, True
        if not self.config.overlap:
            self._draw(handle)

    def _draw(self, handle: _Handle) -> None:
        for row in handle.plan.rows:
            if row.targets is not None:
                handle.tokens.prompt_logprobs[row.seq_id] = _score(row, self._model_term)
            if row.sample is None and row.pool is None:
                continue
            own_ids = handle.token_ids[row.seq_id][: len(row.token_ids) - len(row.verify)]
            if self.config.poison_token is not None and self.config.poison_token in own_ids:
                handle.tokens.errors[row.seq_id] = FINISHED_EARLY
                continue
            if row.sample is not None:
                spec = handle.specs.get(row.seq_id, row.sample)
                handle.tokens.tokens.append(self._sample_row(handle, row, spec))
                self._verify(handle, row)
            if row.pool is not None:
                handle.tokens.pooled.append(self._pool_row(row, handle.tables[row.seq_id]))
        self._previous = {token.seq_id: token.token_id for token in handle.tokens.tokens}

    def _verify(self, handle: _Handle, row: PlanRow) -> None:
        for spec, draft in zip(row.verify, row.drafts, strict=True):
            if draft == self.config.poison_token:
                break
            handle.tokens.tokens.append(self._sample_row(handle, row, spec))

    def _sample_row(self, handle: _Handle, row: PlanRow, spec: SampleSpec) -> SampledToken:
        table, end = handle.tables[row.seq_id], row.start + len(row.token_ids)
        mask = handle.masks.get((row.seq_id, spec.num_drafted))
        end -= len(row.verify) - spec.num_drafted
        seen = visible(end, self.config.window, self.config.num_sinks)
        total = sum(self._pages[self._slot(table, position)] for position in seen)
        term = 31 * self.config.worker_weight + adapter_term(row.adapter_digest) + self._model_term
        token = (total + term) % self.config.vocab_size
        banned = {*self.config.eos_token_ids, *spec.params.stop_token_ids}
        while spec.num_output_tokens < spec.params.min_tokens and token in banned:
            token = (token + 1) % self.config.vocab_size
        while spec.params.has_penalties and token in spec.output_ids:
            token = (token + 1) % self.config.vocab_size
        if mask is not None:
            token = next_allowed(mask, token, self.config.vocab_size)
        logprobs = None
        if spec.params.num_logprobs is not None:
            sampled = TokenLogprob(token, 0.0, 1)
            logprobs = PositionLogprobs(sampled, (sampled,) if spec.params.num_logprobs else ())
        return SampledToken(row.seq_id, token, logprobs)

    def _pool_row(self, row: PlanRow, table: list[int]) -> PooledRow:
        def kv_at(position: int) -> int:
            return self._pages[self._slot(table, position)]

        return fake_pool(row, kv_at, adapter_term(row.adapter_digest))

    def collect(self, handle: _Handle) -> StepTokens:
        """The tokens; without overlap everything happened in ``launch`` and ``sample``."""
        while handle in self._pending:
            first = self._pending.popleft()
            self._forward(first)
            if first.is_sampled:
                self._draw(first)
        return handle.tokens

    def abandon(self) -> None:
        self._pending.clear()

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        """KV of a token range: 8 bytes a token."""
        slots = [self._slot(block_table, position) for position in range(kv_range.token_begin, kv_range.token_end)]
        payload = memoryview(bytearray(KV_BYTES * len(slots))).cast("q")
        for index, slot in enumerate(slots):
            payload[index] = self._pages[slot]
        return payload.cast("B")

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        if payload.nbytes != KV_BYTES * kv_range.num_tokens:
            raise ValueError(f"payload of {payload.nbytes} bytes for {kv_range.num_tokens} tokens")
        values = memoryview(bytes(payload)).cast("q")
        for index, position in enumerate(range(kv_range.token_begin, kv_range.token_end)):
            self._pages[self._slot(block_table, position)] = values[index]

    def load_adapter(self, files: AdapterFiles, is_pinned: Callable[[str], bool] = lambda _: False) -> None:
        self._adapters[files.digest] = None

    def probe(self) -> bytes:
        """KV of a token, so of the worker's weight."""
        return fake_kv(self.config.worker_weight, 1, 0).to_bytes(KV_BYTES, "big", signed=True)

    def check_weights(self, max_bytes: int) -> WeightCheck:
        """There is one: the worker's."""
        noted, self._noted_weight = self._noted_weight, self.config.worker_weight
        damaged = () if noted in (None, self._noted_weight) else ("worker_weight",)
        return WeightCheck(num_bytes=KV_BYTES, num_passes=1, damaged=damaged)

    def resident_adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def sleep(self) -> int:
        """Free the pages."""
        self._pages, freed = memoryview(b"").cast("q"), self._pages.nbytes
        return freed

    def wake(self) -> None:
        """Take pages again; the model's folder, where there is one, must hold the same files."""
        time.sleep((config := self.config).wake_s)
        if config.model_path is not None and read_model_files(config.model_path).digest != config.model_digest:
            raise InvalidCheckpoint("the model's files have changed since they were loaded")
        self._pages = memoryview(bytearray(config.num_blocks * config.block_size * KV_BYTES)).cast("q")

    def _slot(self, block_table: Sequence[int], position: int) -> int:
        size = self.config.block_size
        return block_table[position // size] * size + position % size
