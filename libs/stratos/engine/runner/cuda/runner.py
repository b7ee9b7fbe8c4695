"""The runner of a GPU: ``launch`` and ``sample`` only enqueue, so the scheduler may run one step ahead.

A plan whose rows all have one token is a decode step: its inputs are put into static buffers
(``tables``) and a captured graph of the next larger batch size is replayed (``graphs``).  Every other plan
runs eagerly over tensors of its own.  Sampled tokens stay on the device for rows that continue, and go to the host,
with an event that ``collect`` waits for.  Whether a row's hidden state is finite travels with them.

It runs on a CPU, too, with the kernels interpreted and nothing captured: so it is tested there.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stratos.common.clock import Clock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.device.payload import DevicePayload
from stratos.core.kv import KvRange
from stratos.engine.attention.triton_paged import TritonPagedAttention
from stratos.engine.contract.plan import (
    NON_FINITE_HIDDEN,
    PlanRow,
    SampledToken,
    SampleSpec,
    StepPlan,
    StepTokens,
)
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.layers.product_choice import graph_seconds, measure_products
from stratos.engine.lora.batch import LoraBatch, LoraGroup, StepLora, sorted_by_adapter
from stratos.engine.lora.grouped import GroupedAdapters
from stratos.engine.memory.copies import HostCopies, to_device
from stratos.engine.memory.host_pages import HostSwap
from stratos.engine.runner.cuda.device_facts import facts_of
from stratos.engine.runner.cuda.experts import group_experts, regroup_experts
from stratos.engine.runner.cuda.graphs import Capture, CudaCapture, DecodeGraphs, DecodeOutputs, padded_sizes
from stratos.engine.runner.cuda.page_copies import PageCopies, bytes_at
from stratos.engine.runner.cuda.parked_weights import ParkedWeights
from stratos.engine.runner.cuda.tables import DeviceTables
from stratos.engine.runner.cuda.warm_up import warm_up, warm_up_products
from stratos.engine.runner.forward import finite_tokens
from stratos.engine.runner.pooling import pool_rows
from stratos.engine.runner.prompt_logprobs import prompt_logprobs
from stratos.engine.runner.step_inputs import build_step_inputs
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.runner.weight_sums import tensors_of
from stratos.engine.sampling.sampler import Sampled
from stratos.engine.sampling.triton_sampler import PendingSample, TritonSampler
from stratos.engine.sampling.waiting_sampler import FinishedSample, WaitingSampler
from stratos.engine.settings import RunnerConfig, SchedulerConfig

MIN_SEQUENCES = 512
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CudaHandle:
    """A launched step; tensors may not be computed yet."""

    tokens: StepTokens
    ends: list[tuple[int, int]]
    """Per row, where it lies in ``is_bad``: begin and end."""
    seq_ids: list[int]
    sampled: list[tuple[int, SampleSpec]]
    logits: Tensor | None = None
    """float32 [sampled rows, vocab]."""
    places: Tensor | None = None
    """int64 [sampled rows]: their rows of the tables, until the next step is launched; ``None``: to be looked up."""
    is_bad: Tensor | None = None
    """Bool [rows or tokens]: the hidden state is not finite."""
    pending: PendingSample | FinishedSample | None = None
    copies: HostCopies | None = None
    swap: HostSwap | None = None


def max_sequences(config: RunnerConfig) -> int:
    """Rows that a step may have: twice as many sequences have state on the device."""
    return max(MIN_SEQUENCES, 2 * config.max_graph_batch)


class CudaRunner(TorchRunner):
    """Use ``CudaRunner.load``."""

    can_verify = False  # graphs and tables know rows of one sample
    decoding: DecodeGraphs | None = None
    """``None``: every step runs eagerly."""
    decoding_adapters: DecodeGraphs | None = None
    """The same for steps with adapters, which the others do not pay for; ``None``: these run eagerly."""
    grouped: GroupedAdapters | None = None
    """``None``: adapters are added one by one."""
    tables: DeviceTables
    _logits: Tensor
    """float32 [largest decode step, vocab]: results of every decode step, until the next one."""
    page_copies: PageCopies | None = None
    """``None``: KV is copied on the stream of the steps, by the portable runner's means."""
    _swap_stream: torch.cuda.Stream | None = None
    _captured: tuple[int, Capture | None] | None = None
    _parked: ParkedWeights

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        config: RunnerConfig,
        device: str = "cuda",
        clock: Clock | None = None,
        scheduler: SchedulerConfig | None = None,
        transport_bytes: int = 0,
    ) -> Self:
        """Load a model folder, allocate the pool and the static buffers, capture the decode steps.

        Raises:
            InvalidCheckpoint: as ``TorchRunner.load``, or there is no GPU.
        """
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise InvalidCheckpoint("device is cuda, but torch finds no GPU that it can use")
        with_triton = replace(config, kernels=replace(config.kernels, triton_kernels=True))
        runner = super().load(with_triton, device, clock, scheduler, transport_bytes)
        runner.prepare(config)
        return runner

    @torch.inference_mode()
    def prepare(self, config: RunnerConfig) -> None:
        """Allocate the static buffers and capture the decode steps; once, before the first plan."""
        info, device, kernels = self.info, self._device, config.kernels
        self.info = replace(info, overlap=True, can_probe=False, device=facts_of(device))
        assert isinstance(self.attention, TritonPagedAttention)
        self._kernel = self.attention
        self.has_device_pages = kernels.copy_stream
        if kernels.copy_stream:
            self.page_copies = PageCopies(self.pages)
            if device.type == "cuda" and self.host.num_slots:
                # Not that of hand-offs: swaps wait for the steps launched before them.
                self._swap_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        largest, size = config.max_graph_batch, info.geometry.block_size
        if kernels.grouped_experts and not self.attention.is_exact:
            group_experts(self.decoder)
        num_blocks, parts = -(-info.max_model_len // size), self.attention.context_parts
        self.tables = DeviceTables(
            2 * max_sequences(config),
            largest,
            num_blocks,
            size,
            device,
            parts,
            self.block_tables,
            has_kernel=kernels.prepare_kernel,
        )
        self._gpu_sampler: Any = _sampler(config, info, device)
        # one by one in exact mode, whose products all have one shape
        num_adapters = config.max_resident_adapters
        if num_adapters and kernels.grouped_lora and kernels.sorted_adapters and not self.attention.is_exact:
            self.grouped = GroupedAdapters(self.decoder.config, num_adapters, largest, device)
        if info.can_generate and not self.decoder.waits_for_host:
            if device.type == "cuda":
                measure_products(self.decoder.linears(), padded_sizes(largest), graph_seconds)
            is_captured = kernels.cuda_graphs and device.type == "cuda"
            self.capture_decodes(largest, CudaCapture() if is_captured else None)
            _log.info("decode steps up to %d rows %s", largest, "captured" if is_captured else "run uncaptured")
        if device.type == "cuda":
            self.warm_up()

    @torch.inference_mode()
    def capture_decodes(self, max_batch: int, capture: Capture | None) -> None:
        """Take ``capture`` for decode steps of up to ``max_batch`` rows; without one their work runs each time."""
        self._captured = (max_batch, capture)
        # one for the graphs of all sizes: one each is 742 MB at a vocabulary of 128K and 256 rows
        self._logits = torch.empty(max_batch, self.info.vocab_size, dtype=torch.float32, device=self._device)

        def pad(size: int) -> None:
            self.tables.fill((), size)

        self.decoding = DecodeGraphs(self._decode, max_batch, capture, pad)
        if self.grouped is not None:
            adapters = self.grouped.static
            self.decoding_adapters = DecodeGraphs(lambda size: self._decode(size, adapters), max_batch, capture, pad)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile what no captured step compiled; before the pool has an owner."""
        warm_up(self)
        warm_up_products(self.decoder)
        if self.grouped is not None:
            self.grouped.warm_up(self.decoder.embedding.dtype)
        if self.page_copies is not None:
            self.page_copies.warm_up()
        self.pages.tensor[0].zero_()
        self.tables.forget_tables()

    def sleep(self) -> int:
        self.abandon()
        self._parked = ParkedWeights(tensor for _, tensor in tensors_of("model", self.decoder))
        self.decoding = self.decoding_adapters = None  # graphs hold memory, too
        return self._parked.num_bytes + self.pages.give_back()

    def wake(self) -> None:
        self.pages.take_again()
        self._parked.bring_back()
        del self._parked
        regroup_experts(self.decoder)
        if self._captured is not None:
            max_batch, capture = self._captured
            self.capture_decodes(max_batch, None if capture is None else type(capture)())
            self.pages.tensor[0].zero_()
            self.tables.forget_tables()

    def _decode(self, size: int, lora: StepLora | None = None) -> DecodeOutputs:
        """The work of a decode step over static buffers: what graphs capture."""
        tables = self.tables
        tables.prepare(size)
        metadata = tables.metadata(self._kernel, size)
        hidden = self.decoder.forward(tables.token_ids[:size], tables.positions[:size], self.attention, metadata, lora)
        is_bad = ~finite_tokens(hidden, metadata.cut)
        return DecodeOutputs(self.decoder.logits(hidden, self._logits[:size]), is_bad)

    # -- steps ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> CudaHandle:  # type: ignore[override]
        self.block_tables.apply(plan)
        self.tables.note_changes(plan.rows)
        swap = self.host.start(plan.swap_outs, plan.swap_ins, self._swap_stream, is_fenced=plan.are_swaps_fenced)
        if plan.copies:
            self.pages.copy_blocks(plan.copies)
        if self.grouped is not None and self.grouped.holds_any:
            # in every step: what was evicted frees its memory, whether or not adapters are in use afterwards
            self.grouped.forget_all_but(self.adapters.digests())
        if self._sorts_adapters:
            plan = sorted_by_adapter(plan)
        handle = CudaHandle(StepTokens(), [], [row.seq_id for row in plan.rows], [], swap=swap)
        if not plan.rows:
            return handle
        handle.sampled = [(row.seq_id, row.sample) for row in plan.rows if row.sample]
        groups = self._decode_adapters(plan.rows) if self._is_decode(plan.rows) else None
        if groups is not None:
            self._launch_decode(plan.rows, groups, handle)
        else:
            self._launch_any(plan, handle)
        return handle

    def _is_decode(self, rows: tuple[PlanRow, ...]) -> bool:
        """Rows of one token, all within bounds: others are laid out, and checked, one by one."""
        if self.decoding is None or len(rows) > self.decoding.sizes[-1]:
            return False
        return all(
            len(row.token_ids) == 1
            and row.pool is None
            and row.targets is None
            and row.start < self.info.max_model_len
            and (row.continues or 0 <= row.token_ids[0] < self.info.vocab_size)
            for row in rows
        )

    def _decode_adapters(self, rows: tuple[PlanRow, ...]) -> list[LoraGroup] | None:
        """The adapters of a decode step, none of the base model; ``None``: one of them must be added eagerly."""
        groups = []
        # rows are sorted by adapter, where anything here is not None
        for digest, members in itertools.groupby(range(len(rows)), lambda index: rows[index].adapter_digest):
            if not digest:
                continue
            weights = self.adapters.touch(digest)
            if weights is None:
                return None
            places = list(members)
            groups.append(LoraGroup(weights, slice(places[0], places[-1] + 1)))
        is_captured = self.grouped is not None and all(self.grouped.fits(group) for group in groups)
        return groups if is_captured or not groups else None

    def _step_adapters(self, lora: LoraBatch | None, num_tokens: int) -> StepLora | None:
        """Adapters of an eager step."""
        if lora is None or self.grouped is None:
            return lora
        return self.grouped.step(lora.groups, num_tokens)

    def _launch_decode(self, rows: tuple[PlanRow, ...], groups: list[LoraGroup], handle: CudaHandle) -> None:
        graphs = self.decoding
        assert graphs is not None
        size = graphs.padded(len(rows))
        places = self.tables.fill(rows, size)
        if groups:
            assert self.grouped is not None
            assert self.decoding_adapters is not None
            self.grouped.fill(groups, size)
            graphs = self.decoding_adapters
        outputs = graphs.step(size)
        handle.is_bad, handle.ends = outputs.is_bad[: len(rows)], [(i, i + 1) for i in range(len(rows))]
        if len(handle.sampled) == len(rows):
            handle.logits, handle.places = outputs.logits[: len(rows)], places[: len(rows)]
        elif handle.sampled:
            chosen = [index for index, row in enumerate(rows) if row.sample]
            handle.logits = outputs.logits.index_select(0, to_device(np.array(chosen, dtype=np.int64), self._device))

    def _launch_any(self, plan: StepPlan, handle: CudaHandle) -> None:
        info = self.info
        continued = {row.seq_id: 0 for row in plan.rows if row.continues}
        inputs = build_step_inputs(
            plan, info.vocab_size, info.max_model_len, self.adapters.touch, self._device, self.block_tables, continued
        )
        handle.ends = [(span.begin, span.begin + span.num_tokens) for span in inputs.spans]
        self.tables.continue_rows(plan.rows, [end - 1 for _, end in handle.ends], inputs.token_ids)
        metadata = self.attention.prepare(inputs.spans)
        lora = self._step_adapters(inputs.lora, len(inputs.token_ids))
        hidden = self.decoder.forward(inputs.token_ids, inputs.positions, self.attention, metadata, lora)
        handle.is_bad = ~finite_tokens(hidden, self.attention.cut(metadata))
        handle.tokens.errors.update(inputs.errors)
        handle.tokens.pooled = pool_rows(plan.rows, inputs.spans, hidden, self.decoder.final_states)
        handle.tokens.prompt_logprobs = prompt_logprobs(plan.rows, inputs.spans, hidden, self.decoder.logits)
        if handle.sampled:
            tokens = inputs.sampled_tokens
            handle.logits = self.decoder.logits(hidden if tokens is None else hidden.index_select(0, tokens))

    @torch.inference_mode()
    def sample(  # type: ignore[override]
        self, handle: CudaHandle, masks: Any = None, specs: Mapping[int, SampleSpec] | None = None
    ) -> None:
        tensors: list[Tensor] = []
        if handle.logits is not None:
            complete = specs or {}
            rows = [complete.get(seq_id, spec) for seq_id, spec in handle.sampled]
            by_row = {i: masks[s, 0] for i, (s, _) in enumerate(handle.sampled) if (s, 0) in masks} if masks else None
            handle.pending = self._gpu_sampler.start(handle.logits, rows, by_row)
            places = handle.places
            if places is None:
                places = self.tables.rows_of([seq_id for seq_id, _ in handle.sampled])
            self.tables.keep_tokens(places, handle.pending.token_ids)
            tensors = handle.pending.tensors()
            handle.logits = None
        if handle.is_bad is not None:
            handle.copies = HostCopies([handle.is_bad, *tensors])

    @torch.inference_mode()
    def collect(self, handle: CudaHandle) -> StepTokens:  # type: ignore[override]
        tokens = handle.tokens
        if handle.swap is not None:
            tokens.swap_s, tokens.damaged_slots = handle.swap.wait(), handle.swap.damaged
        if handle.copies is None:
            return tokens
        is_bad, *tensors = handle.copies.wait()
        flags = is_bad.tolist()
        for seq_id, (begin, end) in zip(handle.seq_ids, handle.ends, strict=True):
            if any(flags[begin:end]):
                tokens.errors.setdefault(seq_id, NON_FINITE_HIDDEN)
        if handle.pending is not None:
            self._add_tokens(handle, handle.pending, tensors)
        return tokens

    def _add_tokens(self, handle: CudaHandle, pending: PendingSample | FinishedSample, tensors: list[Tensor]) -> None:
        tokens = handle.tokens
        sampled: Sampled = self._gpu_sampler.finish(pending, tensors, [spec for _, spec in handle.sampled])
        for row, (seq_id, _) in enumerate(handle.sampled):
            if row in sampled.errors:
                tokens.errors.setdefault(seq_id, sampled.errors[row])
            if seq_id not in tokens.errors:
                tokens.tokens.append(SampledToken(seq_id, sampled.token_ids[row], sampled.logprobs.get(row)))

    # -- KV ------------------------------------------------------------------------------------------

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        if self.page_copies is None:
            return super().gather(block_table, kv_range)
        return self.page_copies.gather(block_table, kv_range)

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        if self.page_copies is None:
            super().scatter(block_table, kv_range, payload)
        else:
            self.page_copies.scatter(block_table, kv_range, payload)

    def pack(self, block_table: Sequence[int], kv_range: KvRange) -> tuple[DevicePayload, int]:
        assert self.page_copies is not None, "see has_device_pages"
        run, checksum = self.page_copies.pack(block_table, kv_range)
        payload = DevicePayload(
            address=run.data_ptr(), nbytes=run.numel(), read=lambda: run.cpu().numpy().tobytes(), owner=run
        )
        return payload, checksum

    def unpack(self, block_table: Sequence[int], kv_range: KvRange, payload: DevicePayload) -> int:
        assert self.page_copies is not None, "see has_device_pages"
        return self.page_copies.unpack(block_table, kv_range, bytes_at(payload, self._device))

    def abandon(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.tables.forget_tables()


def _sampler(config: RunnerConfig, info: RunnerInfo, device: torch.device) -> TritonSampler | WaitingSampler:
    if not config.kernels.triton_sampler:
        return WaitingSampler(info.eos_token_ids, info.vocab_size, device)
    return TritonSampler(info.eos_token_ids, info.vocab_size, device, is_split=config.kernels.split_sampler)
