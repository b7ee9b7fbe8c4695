"""Decode steps of the 8B shape against the roofline, their ablations, and prefill, through the real runner."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import torch

from scripts.gpu.random_model import BLOCK, RandomModel, adapter_name
from scripts.gpu.rig import Rig
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.contract.plan import PREVIOUS_TOKEN, PlanRow, SampleSpec, StepPlan
from stratos.engine.runner.cuda.runner import CudaRunner

BATCHES, CONTEXT, STEPS, WARM_UP = (1, 8, 32, 64, 128, 256), 1024, 32, 6
ABLATED = (1, 8, 64)
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, top_k=50)
UNTRUNCATED = SamplingParams(temperature=0.8)
VARIANTS: dict[str, tuple[dict[str, bool], bool, SamplingParams]] = {
    "all_on": ({}, True, GREEDY),
    "overlap_off": ({}, False, GREEDY),
    "graphs_off": ({"cuda_graphs": False}, True, GREEDY),
    "fused_ops_off": ({"fused_ops": False}, True, GREEDY),
    "gemm_choice_off": ({"gemm_choice": False}, True, GREEDY),
    "prepare_kernel_off": ({"prepare_kernel": False}, True, GREEDY),
    "dependent_launch_off": ({"dependent_launch": False}, True, GREEDY),
    "split_kv_off": ({"split_kv": False}, True, GREEDY),
    "balanced_kv_off": ({"balanced_kv": False}, True, GREEDY),
    "sampled": ({}, True, SAMPLED),
    "sampled_split_sampler_off": ({"split_sampler": False}, True, SAMPLED),
    "untruncated": ({}, True, UNTRUNCATED),
    "untruncated_split_sampler_off": ({"split_sampler": False}, True, UNTRUNCATED),
    "sampled_sampler_off": ({"triton_sampler": False}, True, SAMPLED),
}
"""Switches of the runner; overlap, and how tokens are sampled."""


def decode(rig: Rig) -> None:
    """Section ``decode``: step time and MBU by batch."""
    model, bench = _model(rig)
    runner = model.runner(max(bench.batches))
    for batch in bench.batches:
        rig.attempt(f"greedy_{batch}", partial(bench.measure, runner, batch, GREEDY, overlap=True))
    for batch in bench.batches[:: len(bench.batches) - 1]:
        rig.attempt(f"sampled_{batch}", partial(bench.measure, runner, batch, SAMPLED, overlap=True))


def ablations(rig: Rig) -> None:
    """Section ``ablations``: each switch off in turn."""
    model, bench = _model(rig)
    batches = (2,) if rig.is_rehearsal else tuple(batch for batch in bench.batches if batch in ABLATED)
    for name, (switches, overlap, params) in VARIANTS.items():
        runner = model.runner(max(batches), **switches)
        for batch in batches:
            rig.attempt(f"{name}_{batch}", partial(bench.measure, runner, batch, params, overlap=overlap))
        del runner


def adapters(rig: Rig) -> None:
    """Section ``adapters``: decode steps whose rows use so many adapters of rank 16 on every projection, in turn."""
    model, bench = _model(rig)
    batch = min(64, max(bench.batches))
    for num_adapters in (0, 2) if rig.is_rehearsal else (0, 1, 8, 32):
        for is_grouped in (True, False) if num_adapters in (2, 8) else (True,):
            runner = model.runner(batch, num_adapters, grouped_lora=is_grouped)
            name = f"{num_adapters}_of_{batch}{'' if is_grouped else '_one_by_one'}"
            bench.num_adapters = num_adapters
            rig.attempt(name, partial(bench.measure, runner, batch, GREEDY, overlap=True))
            del runner


def prefill(rig: Rig) -> None:
    """Section ``prefill``: one prompt in one eager step."""
    model, bench = _model(rig)
    runner = model.runner(1)
    for tokens in (24,) if rig.is_rehearsal else (512, 2048, 4096, 8192):
        rig.attempt(f"prompt_{tokens}", partial(bench.prefill, runner, model, tokens))


def sleep(rig: Rig) -> None:
    """Section ``sleep``: a runner that gives its memory back and wakes, with what the device has left meanwhile."""
    model, _ = _model(rig)
    runner = model.runner(1)

    def once() -> dict[str, Any]:
        began = time.perf_counter()
        freed = runner.sleep()
        slept = time.perf_counter()
        left = 0 if rig.is_rehearsal else torch.cuda.memory_reserved()
        runner.wake()
        woken = time.perf_counter()
        return {
            "freed_bytes": freed, "reserved_bytes_asleep": left, "sleep_s": round(slept - began, 3),
            "wake_s": round(woken - slept, 3), "wake_gb_per_s": round(freed / (woken - slept) / 1e9, 2),
        }  # fmt: skip

    for turn in range(1 if rig.is_rehearsal else 3):
        rig.attempt(f"turn_{turn}", once)


def _model(rig: Rig) -> tuple[RandomModel, Bench]:
    bandwidth = rig.copy_bandwidth()
    rig.record("copy_gb_per_s", round(bandwidth / 1e9, 1))
    context = 20 if rig.is_rehearsal else CONTEXT
    batches: tuple[int, ...] = (1, 3) if rig.is_rehearsal else BATCHES
    blocks_per_row = -(-(context + 2 * (STEPS + WARM_UP)) // BLOCK)
    largest = max(batches)
    if not rig.is_rehearsal:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        # 17 GB of weights; 6 GB for graphs, logits and activations
        room = (free - 23 * 2**30) // (2 * 32 * 8 * 128 * 2 * BLOCK)
        while largest * blocks_per_row > room:
            largest //= 2
    batches = tuple(batch for batch in batches if batch <= largest)
    model = RandomModel(rig, max(largest * blocks_per_row, 16 if rig.is_rehearsal else 512))
    rig.record("batches", list(batches))
    with torch.inference_mode():
        model.runner(1, cuda_graphs=False)  # the reader knows its weights now
    return model, Bench(rig, model, bandwidth, context, batches, blocks_per_row)


class Bench:
    """Decode rows that all have the same context to start with."""

    def __init__(
        self, rig: Rig, model: RandomModel, bandwidth: float, context: int, batches: tuple[int, ...], width: int
    ) -> None:
        self._rig, self._bandwidth, self._context = rig, bandwidth, context
        self._model, self.batches, self._width = model, batches, width
        blocks = list(range(max(batches) * width))
        random.Random(0).shuffle(blocks)
        self._tables = [tuple(blocks[i * width : (i + 1) * width]) for i in range(max(batches))]
        self._next_id = 0
        self.num_adapters = 0
        """Rows take them in turn; 0 is the base model."""

    def measure(self, runner: CudaRunner, batch: int, params: SamplingParams, overlap: bool) -> dict[str, Any]:
        """Wall time of a step, and the device's time of the forward pass alone where the step is a decode step."""
        self._next_id += batch
        warm_up, steps, repeats = (1, 1, 1) if self._rig.is_rehearsal else (WARM_UP, STEPS, 2)
        plans = [self._plan(batch, params, i, overlap and i not in (0, warm_up)) for i in range(warm_up + steps)]
        self._run(runner, plans[:warm_up], overlap)
        best, enqueued = float("inf"), float("inf")
        for _ in range(repeats):
            begin = time.perf_counter()
            enqueue_s = self._run(runner, plans[warm_up:], overlap)
            best = min(best, (time.perf_counter() - begin) / steps)
            enqueued = min(enqueued, enqueue_s / steps)
        context = self._context + warm_up + steps / 2
        moved = self._model.reader.step_bytes() + batch * context * self._model.geometry.token_bytes
        return {
            "step_ms": round(best * 1e3, 3),
            "enqueue_ms": round(enqueued * 1e3, 3),
            "roofline_ms": round(moved / self._bandwidth * 1e3, 3),
            "mbu": round(moved / self._bandwidth / best, 3),
            "tokens_per_s": round(batch / best, 1),
            **self._forward(runner, batch, moved),
        }

    def _forward(self, runner: CudaRunner, batch: int, moved: float) -> dict[str, float]:
        """Times of the forward pass alone; nothing where adapters are added one by one, which no decode step does."""
        graphs = runner.decoding_adapters if self.num_adapters else runner.decoding
        if graphs is None:
            return {}
        size = graphs.padded(batch)
        with torch.inference_mode():
            forward = self._rig.event_seconds(lambda: graphs.step(size))
        return {"forward_ms": round(forward * 1e3, 3), "forward_mbu": round(moved / self._bandwidth / forward, 3)}

    def _run(self, runner: CudaRunner, plans: list[StepPlan], overlap: bool) -> float:
        """Steps in the order of the runner's contract; returns seconds of ``launch`` and ``sample`` at the end."""
        batch, previous, enqueue_s = len(plans[0].rows), None, 0.0
        for plan in plans:
            begin = time.perf_counter()
            handle = runner.launch(plan)
            launched = time.perf_counter()
            if previous is not None:
                self._check(runner.collect(previous), batch)
            collected = time.perf_counter()
            runner.sample(handle)
            enqueue_s += launched - begin + time.perf_counter() - collected
            previous = handle
            if not overlap:
                self._check(runner.collect(handle), batch)
                previous = None
        if previous is not None:
            self._check(runner.collect(previous), batch)
        return enqueue_s

    @staticmethod
    def _check(tokens: Any, batch: int) -> None:
        if tokens.errors or len(tokens.tokens) != batch:
            raise RuntimeError(f"a step of {batch} rows gave {len(tokens.tokens)} tokens, errors {tokens.errors}")

    def _plan(self, batch: int, params: SamplingParams, step: int, continues: bool) -> StepPlan:
        start = self._context + step
        num_known = (start - 1) // BLOCK + 1 if step else 0  # the first plan brings whole tables, as an engine's does
        rows = []
        for index in range(batch):
            spec = SampleSpec(
                key=RequestKey(str(index), 0),
                choice=0,
                seed=index,
                position=start + 1,
                params=params,
                prompt_ids=(),
                output_ids=(),
                num_output_tokens=step,
            )
            row = PlanRow(
                seq_id=self._next_id + index,
                token_ids=(PREVIOUS_TOKEN if continues else index % 90,),
                start=start,
                block_table=self._tables[index][num_known : start // BLOCK + 1],
                table_begin=num_known,
                sample=spec,
                adapter_digest=adapter_name(index % self.num_adapters) if self.num_adapters else "",
                continues=continues,
            )
            rows.append(row)
        return StepPlan(step=step, rows=tuple(rows))

    def prefill(self, runner: CudaRunner, model: RandomModel, num_tokens: int) -> dict[str, Any]:
        """Time to the first token of one prompt, the best of several."""
        blocks = tuple(range(-(-num_tokens // BLOCK)))
        spec = SampleSpec(
            key=RequestKey("prompt", 0), choice=0, seed=0, position=num_tokens, params=GREEDY, prompt_ids=(),
            output_ids=(), num_output_tokens=0,
        )  # fmt: skip
        tokens = tuple((7 * i) % model.config.vocab_size for i in range(num_tokens))
        best = float("inf")
        for index in range(2 if self._rig.is_rehearsal else 6):
            row = PlanRow(seq_id=-1 - index, token_ids=tokens, start=0, block_table=blocks, sample=spec)
            begin = time.perf_counter()
            handle = runner.launch(StepPlan(step=index, rows=(row,)))
            runner.sample(handle)
            self._check(runner.collect(handle), 1)
            best = min(best, time.perf_counter() - begin)
        config = model.config
        # the head runs for one token; causal attention does half of the square
        weights = model.reader.step_bytes() / self._rig.dtype.itemsize - config.vocab_size * config.hidden_size
        flops = 2 * weights * num_tokens + 2 * config.num_layers * num_tokens**2 * config.q_size
        return {
            "ms": round(best * 1e3, 2),
            "tflop_per_s": round(flops / best / 1e12, 1),
            "tokens_per_s": round(num_tokens / best),
        }
