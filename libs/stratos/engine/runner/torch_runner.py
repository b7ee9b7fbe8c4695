"""The runner that executes plans with torch: one model, one KV pool, one device.

A step: swaps with the host tier -> block copies -> inputs (``step_inputs``) -> attention metadata -> decoder -> logits
of sampled rows -> sampler.  On CPU each call does its work at once.  A row whose hidden state or logits are not finite
is reported in ``StepTokens.errors``, whether it samples or not; its neighbours go on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from stratos.common.clock import Clock, SystemClock
from stratos.common.errors import FeatureUnavailable, InvalidCheckpoint
from stratos.core.files.adapter_files import AdapterFiles
from stratos.core.files.model_files import read_model_files
from stratos.core.kv import KvIdentity, KvRange
from stratos.engine.attention.backend import AttentionBackend
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import SampledToken, SampleSpec, StepPlan, StepTokens
from stratos.engine.contract.results import WeightCheck
from stratos.engine.contract.runner import Runner, RunnerInfo
from stratos.engine.layers.thread_scope import one_thread, using_threads
from stratos.engine.lora.batch import sorted_by_adapter
from stratos.engine.lora.host_copy import read_adapter
from stratos.engine.lora.store import LoraStore
from stratos.engine.lora.weights import lay_out
from stratos.engine.memory.host_pages import HostPages, HostSwap
from stratos.engine.memory.kv_pages import KvPages, num_blocks_for
from stratos.engine.models.reloading import Decoder, ReloadableWeights
from stratos.engine.runner.device_room import room_of
from stratos.engine.runner.forward import Forward, ForwardResult, LayeredForward, report_non_finite
from stratos.engine.runner.kernels import choose_kernels, choose_pages, geometry_of, score_options
from stratos.engine.runner.known_tokens import KnownTokens, can_probe, num_spare_blocks
from stratos.engine.runner.native_forward import make_forward
from stratos.engine.runner.numerics import libraries_of, numerics_id, promise
from stratos.engine.runner.pooling import pool_rows
from stratos.engine.runner.prompt_logprobs import prompt_logprobs
from stratos.engine.runner.quantisation import chosen_scheme, is_widened_by_switch, scheme_parts
from stratos.engine.runner.step_inputs import KeptInputs, StepInputs
from stratos.engine.runner.streaming import streaming
from stratos.engine.runner.threads import ThreadChoice, small_product
from stratos.engine.runner.weight_sums import WeightSums
from stratos.engine.sampling.sampler import Sampled, Sampler, is_plain_greedy
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.fit import fitted, plan_of
from stratos.engine.sizing.need import read_need
from stratos.engine.sizing.plan import EnginePlan

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StepHandle:
    inputs: StepInputs | None
    """``None`` for a plan without rows."""
    logits: Tensor | None
    """float32 [sampled rows, vocab]."""
    tokens: StepTokens
    num_sound_drafts: dict[int, int] = field(default_factory=dict)
    """By seq_id, drafted tokens before the first one whose hidden state is not finite."""


class TorchRunner(Runner):
    """Use ``TorchRunner.load``."""

    can_verify = True
    plan: EnginePlan
    """Choices for the device, and their reasons."""
    _threads: ThreadChoice | None = None
    """Where the number of threads is ours to choose."""
    _num_threads = 1
    """Threads that wake it."""
    _weights: ReloadableWeights | None = None
    """``None`` where they lie in memory of a library."""
    _known: KnownTokens
    _sums: WeightSums
    """Parts of a runner that can be probed."""

    def __init__(
        self,
        info: RunnerInfo,
        decoder: Decoder,
        attention: AttentionBackend,
        pages: KvPages,
        host: HostPages,
        adapters: LoraStore,
        *,
        sorts_adapters: bool = True,
        keeps_inputs: bool = True,
    ) -> None:
        self.info = info
        self._sorts_adapters = sorts_adapters
        self.decoder, self.attention, self.pages, self.adapters = decoder, attention, pages, adapters
        self.forward: Forward = LayeredForward(decoder, attention)
        self.host, self._device = host, pages.tensor.device
        self.read_slot, self.fill_slot = host.read, host.fill  # type: ignore[method-assign]
        self.sampler: Sampler = Sampler(info.eos_token_ids, info.vocab_size, self._device, decoder.ops)
        self.block_tables = KeptTables()
        self.inputs = KeptInputs(
            info.vocab_size, info.max_model_len, adapters.touch, self.block_tables, self._device, is_kept=keeps_inputs
        )
        self._previous: dict[int, int] = {}
        """Tokens of the plan sampled last, by seq_id: rows of the next plan may continue with them."""

    @classmethod
    @torch.inference_mode()
    def load(
        cls,
        config: RunnerConfig,
        device: str = "cpu",
        clock: Clock | None = None,
        scheduler: SchedulerConfig | None = None,
        transport_bytes: int = 0,
    ) -> Self:
        """Load a model folder, choose what is left open and the number of threads, and allocate the KV pool.

        Args:
            config: settings; what they leave open is fitted to the device.
            device: where to compute.
            clock: times the choice of threads.
            scheduler: bounds of its steps, from which sizes follow; the default ones where there are none.
            transport_bytes: staging memory of KV transports, as far as it lies in the device's memory.

        Raises:
            InvalidCheckpoint: the folder, its weights, the type or the memory do not allow it.
        """
        if config.dtype not in ("auto", *DTYPES):
            raise InvalidCheckpoint(f"dtype {config.dtype!r} is not supported; supported: {', '.join(DTYPES)}")
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        target, clock = torch.device(device), clock or SystemClock()
        files = read_model_files(config.model_folder(), config.model_digest)
        model = parse_decoder_config(files.config, has_lm_head=files.can_generate)
        plan = plan_of(config, scheduler or SchedulerConfig(), room_of(target), transport_bytes)
        config = fitted(config, plan)
        dtype = DTYPES[config.dtype]
        streams = streaming(config, model, target)
        model = streams.model if streams else model.for_context(config.max_model_len)
        kernels = choose_kernels(config, target, dtype)
        kernels.check_states(model, config, scheduler, target)
        linear = kernels.linear(config, target, dtype)
        weights = chosen_scheme(config.quantization, model)
        keeps = linear.keeps_codes and config.kernels.kept_codes
        of_files = partial(CheckpointReader, files, model, dtype, target, config.quantization)
        open_reader = partial(of_files, keeps_codes=keeps, take=linear.memory.take)
        reader = open_reader()
        codes = kernels.kv_codes
        kv_dtype = torch.float8_e4m3fn if kernels.has_fp8_kv else dtype if codes is None else torch.uint8
        geometry = geometry_of(model, config, kv_dtype, codes.scale_bytes if codes else 0)
        groups, make_pages = choose_pages(model.kv_windows, config, None if streams else scheduler, target)
        num_blocks = num_blocks_for(geometry, config.kv_pool_bytes, groups)
        key_unit = streams.key_unit(kernels, geometry, dtype) if streams else kernels.key_unit(geometry, dtype)
        # A team of threads that waits for cores stops the streams of other processes; one thread loads as well.  At
        # the same time the system clears the pool's memory, for a thread that may run where this one may: on the same
        # memory node.
        with ThreadPoolExecutor(1, "kv-pool") as pool_thread, one_thread():
            num_spare = num_spare_blocks(config.block_size) if target.type == "cpu" else 0
            making_pages = pool_thread.submit(
                make_pages, geometry, num_blocks, kv_dtype, target, key_unit, codes, num_spare=num_spare
            )
            with linear.memory.noting():
                decoder = Decoder(model, reader, linear, kernels.ops, target, streams.rotary if streams else None)
            pages = making_pages.result()
        threads = None
        if not config.num_threads and target.type == "cpu":
            product = small_product(linear.plain, dtype)
            threads = ThreadChoice(torch.get_num_threads(), product, clock)
        host = HostPages(pages, config.host_pool_bytes // pages.tensor[0].nbytes, clock)
        scales = reader.kv_scales() if kernels.has_fp8_kv else None
        scores = score_options(model.options, reader.sinks())
        if streams:
            attention = streams.attention(kernels, pages, dtype, scales, scores)
        else:
            attention = kernels.attention(pages, model.num_heads, model.kv_windows, dtype, scales, scores)
        ops, is_exact = kernels.ops, kernels.is_exact and streams is None
        states, delta = kernels.states(geometry, config.state_slots)
        used = (attention, ops, linear, *decoder.rotaries, *delta)
        promised = promise(used, target, is_exact=is_exact)
        libraries = libraries_of(used, ops.routing_libraries if decoder.has_experts else ())
        names = (attention.name, ops.name, linear.kernel_name, *(part.name for part in (*decoder.rotaries, *delta)))
        names = (*names, *decoder.routing_names)
        need = read_need(config.model_folder(), config.quantization, keeps_codes=keeps)
        family, is_widened = linear.code_family, is_widened_by_switch(config.quantization, model)
        schemes = scheme_parts(weights, family) if keeps or (family and not is_widened) else ()
        info = RunnerInfo(
            identity=KvIdentity(
                model_digest=files.digest,
                kv_dtype=codes.identity if codes else config.kv_dtype if kernels.has_fp8_kv else config.dtype,
                rope_variant=streams.variant if streams else model.rope_variant,
                numerics_id=numerics_id(target, config.dtype, libraries, *names, *schemes, *promised),
            ),
            geometry=geometry,
            num_blocks=pages.num_blocks,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len if streams else config.max_model_len,
            eos_token_ids=files.eos_token_ids,
            model_path=config.model_path,
            can_generate=model.has_lm_head,
            embedding_size=model.hidden_size,
            num_host_blocks=host.num_slots,
            page_layout=pages.layout,
            num_state_slots=config.state_slots if states else 0,
            window=model.max_window,
            num_sinks=config.streaming.attention_sinks,
            groups=groups,
            is_streaming=streams is not None,
            num_adapter_slots=config.max_resident_adapters,
            step_weight_bytes=need.read_bytes(config.dtype),
            token_operations=need.layer_operations,
            sampled_operations=need.output_operations,
            quantization=weights,
            can_probe=can_probe(config, target, promised, is_streaming=streams is not None),
        )
        linear.fix_threads()
        biases = reader.biases()
        adapters = LoraStore(
            config.max_resident_adapters,
            config.host_adapter_bytes,
            lambda adapter: read_adapter(adapter, model, dtype),
            lambda copy: lay_out(copy, model, linear, biases, target),
        )
        _log.info("loaded %s: %s, %d KV blocks", config.model_path, info.identity.numerics_id, info.num_blocks)
        if need.widened:
            _log.info("%s: quantised in the file, floats in memory: %s", config.model_path, ", ".join(need.widened))
        switches = config.kernels
        options = {"sorts_adapters": switches.sorted_adapters, "keeps_inputs": switches.kept_inputs}
        runner = cls(info, decoder, attention, pages, host, adapters, **options)
        runner.plan = plan
        runner._num_threads = torch.get_num_threads()
        if linear.keeps_codes:
            runner._weights = ReloadableWeights(decoder, files, partial(open_reader, is_checked=True), linear)
        runner.forward = make_forward(decoder, attention, kernels.library, config.kernels, states)
        if info.can_probe:
            runner._known = KnownTokens(info, runner.forward, info.num_blocks, target)
            runner._sums = WeightSums({"model": decoder, "scores": getattr(attention, "scores", scores)})
        runner.sampler = kernels.sampler(config, info.eos_token_ids, info.vocab_size) or runner.sampler
        if threads is not None:
            # Bits that may depend on the number of threads must not change in the middle of a sequence.
            threads.is_fixed |= is_exact and promised != ("exact",)
            runner._threads = threads
        return runner

    @property
    def has_fixed_threads(self) -> bool:
        """The number of threads does not follow the load."""
        return self._threads is None or self._threads.is_fixed

    def sleep(self) -> int:
        if self._weights is None:
            raise FeatureUnavailable("an engine without the C++ kernels cannot sleep: its weights are a library's")
        return self._weights.give_back() + self.pages.give_back()

    @torch.inference_mode()
    def wake(self) -> None:
        assert self._weights is not None, "sleep() comes first"
        with using_threads(self._num_threads):
            self.pages.take_again()
            self._weights.read_again()
        if self.info.can_probe:
            self._known.forget()

    # -- steps ---------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> StepHandle:
        self.block_tables.apply(plan)
        swap = self._move_blocks(plan) if plan.copies or plan.swap_outs or plan.swap_ins else None
        handle = self._watched(plan) if plan.rows else StepHandle(None, None, StepTokens())
        if swap is not None:  # its copies may have run beside the pass
            handle.tokens.swap_s, handle.tokens.damaged_slots = swap.wait(), swap.damaged
        return handle

    @torch.inference_mode()
    def _move_blocks(self, plan: StepPlan) -> HostSwap:
        swap = self.host.swap(plan.swap_outs, plan.swap_ins)
        if plan.copies:
            self.pages.copy_blocks(plan.copies)
        return swap

    def _watched(self, plan: StepPlan) -> StepHandle:
        if self._threads is None or self._threads.is_fixed:
            return self._compute(plan, StepTokens())
        with self._threads.watching(plan.num_tokens):
            return self._compute(plan, StepTokens())

    def _compute(self, plan: StepPlan, tokens: StepTokens) -> StepHandle:
        if self._sorts_adapters:
            plan = sorted_by_adapter(plan)
        inputs = self.inputs.of(plan, self._previous)
        is_bare = inputs.num_moves and inputs.lora is None and self.forward.is_bare
        result = self.forward.run(inputs) if is_bare else None
        if result is not None and all(result.is_finite.tolist()):  # streams alone, and nothing to tell of them
            return StepHandle(inputs, result.logits, tokens)
        with torch.inference_mode():
            return self._enter(plan, inputs, result or self.forward.run(inputs), tokens)

    def _enter(self, plan: StepPlan, inputs: StepInputs, result: ForwardResult, tokens: StepTokens) -> StepHandle:
        """Report what a pass gave beside logits."""
        tokens.errors = dict(inputs.errors)
        num_sound_drafts = report_non_finite(result.is_finite, plan, inputs, tokens.errors)
        tokens.pooled = pool_rows(plan.rows, inputs.spans, result.hidden, self.decoder.final_states)
        tokens.prompt_logprobs = prompt_logprobs(plan.rows, inputs.spans, result.hidden, self.decoder.logits)
        return StepHandle(inputs, result.logits, tokens, num_sound_drafts)

    def sample(self, handle: StepHandle, masks: Any = None, specs: Mapping[int, SampleSpec] | None = None) -> None:
        self._previous = {}
        inputs, logits = handle.inputs, handle.logits
        if inputs is None or logits is None:
            return
        rows = inputs.sampled_rows
        if not inputs.is_plain and not specs:
            inputs.is_plain = all(is_plain_greedy(spec) for _, spec in rows)  # and as long as they are kept
        if inputs.is_plain and not masks:
            sampled = self.sampler.greedy(logits)
        else:
            sampled = self._sample(logits, rows, masks or {}, specs or {})
        if inputs.has_drafts or sampled.errors or handle.tokens.errors:
            _take_sampled(handle, sampled)
        else:
            found, logprobs = enumerate(zip(rows, sampled.token_ids, strict=True)), sampled.logprobs
            handle.tokens.tokens = [SampledToken(row[0], token, logprobs.get(place)) for place, (row, token) in found]
        self._previous = {token.seq_id: token.token_id for token in handle.tokens.tokens}

    @torch.inference_mode()
    def _sample(
        self, logits: Tensor, rows: list[tuple[int, SampleSpec]], masks: Any, specs: Mapping[int, SampleSpec]
    ) -> Sampled:
        places = [(seq_id, spec.num_drafted) for seq_id, spec in rows] if masks else []
        by_row = {row: masks[place] for row, place in enumerate(places) if place in masks}
        return self.sampler.sample(logits, [specs.get(seq_id, spec) for seq_id, spec in rows], by_row)

    def collect(self, handle: StepHandle) -> StepTokens:
        return handle.tokens

    @torch.inference_mode()
    def probe(self) -> bytes:
        return self._known.digest()

    def check_weights(self, max_bytes: int) -> WeightCheck:
        return self._sums.check(max_bytes)

    # -- KV ------------------------------------------------------------------------------------------

    def gather(self, block_table: Sequence[int], kv_range: KvRange) -> memoryview:
        with one_thread():
            return self.pages.gather(block_table, kv_range)

    def scatter(self, block_table: Sequence[int], kv_range: KvRange, payload: memoryview) -> None:
        with one_thread():
            self.pages.scatter(block_table, kv_range, payload)

    def gather_state(self, slot: int, kv_range: KvRange) -> memoryview:
        assert self.forward.states is not None, "this model has no states"
        return self.forward.states.gather(slot, kv_range, self.info.geometry.num_layers)

    def scatter_state(self, slot: int, kv_range: KvRange, payload: memoryview) -> None:
        assert self.forward.states is not None, "this model has no states"
        self.forward.states.scatter(slot, kv_range, self.info.geometry.num_layers, payload)

    @torch.inference_mode()
    def load_adapter(self, files: AdapterFiles, is_pinned: Callable[[str], bool] = lambda _: False) -> None:
        with one_thread():
            self.adapters.load(files, is_pinned)

    def resident_adapters(self) -> tuple[str, ...]:
        """Least recently used first."""
        return self.adapters.digests()


def _take_sampled(handle: StepHandle, sampled: Sampled) -> None:
    """Enter what was sampled, where rows have errors or drafts: these only up to the first that cannot be sampled."""
    assert handle.inputs is not None
    tokens, is_cut = handle.tokens, set[int]()
    for row, (seq_id, spec) in enumerate(handle.inputs.sampled_rows):
        if spec.num_drafted:
            if row in sampled.errors or spec.num_drafted > handle.num_sound_drafts.get(seq_id, sys.maxsize):
                is_cut.add(seq_id)
            if seq_id in is_cut:
                continue
        if row in sampled.errors:
            tokens.errors.setdefault(seq_id, sampled.errors[row])
        if seq_id not in tokens.errors:
            tokens.tokens.append(SampledToken(seq_id, sampled.token_ids[row], sampled.logprobs.get(row)))
