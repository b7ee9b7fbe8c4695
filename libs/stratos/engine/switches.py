"""Switches of an engine that only benchmarks turn: each optimisation off alone, and the baselines it is compared with.

No operator needs them. ``SchedulerConfig`` and ``RunnerConfig`` hold them as groups of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSwitches:
    """Ablation switches of the scheduler, for benchmarks."""

    overlap: bool | None = None
    """Plan a step while the one before it runs; off collects each step first, unset takes what suits the runner."""
    prefix_cache: bool = True
    """Share full blocks between requests with equal prefixes."""
    fair_prompts: bool = True
    """Prompts share steps by class, tenant and length; off serves those in the batch one after the other, and admits
    none before a step has room left. Needs ``chunked_prefill``."""
    batch_pauses: bool = True
    """Streams of the lowest class leave steps to prompts of classes above it; off computes all of them in one step.
    Needs ``fair_prompts``."""
    steady_steps: bool = True
    """Plan a step as the one before while its streams stay the same and nothing waits; off looks at everything."""
    chunked_prefill: bool = True
    """Off computes a prompt in one step, however long it is."""
    host_tier: bool = True
    """Off leaves the host pool unused, where ``host_pool_bytes`` gives one."""
    swap_costs: bool = True
    """Off copies to and from host memory whenever there is room, even where computing is cheaper."""
    window_release: bool = True
    """KV that left the sliding windows of a model's layers is given up; off keeps it."""
    parallel_grammar_masks: bool | None = None
    """Fill the masks of structured output in threads during the forward pass; unset does so with a GPU only, since on
    CPU those threads take cores from the forward pass."""
    shared_forced_tokens: bool = True
    """Compute the mask of a token that a grammar forces once for all of its requests, by the tokens before it; off
    computes it for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Older ways to schedule, which benchmarks compare with."""

    kv_cache: bool = True
    """Off computes the whole sequence again for every token, shares and overlaps nothing."""
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    """"contiguous" gives every sequence the KV of a whole context at admission, and shares nothing."""
    batching: Literal["continuous", "static"] = "continuous"
    """"static" admits only when the batch before has ended."""
    scheduling: Literal["mixed", "prefill-first"] = "mixed"
    """"prefill-first" runs decodes only in steps in which no prompt could run."""

    @property
    def is_paged(self) -> bool:
        """Sequences keep their KV, in blocks."""
        return self.kv_cache and self.kv_allocation == "paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSwitches:
    """Kernels of a runner: ablation switches for benchmarks."""

    native_kernels: bool = True
    """C++ kernels for attention and layer operations on CPU, where setup could build them."""
    native_gemm: bool = True
    """Linear layers by the C++ kernels on CPU, where setup could build them, instead of oneDNN."""
    prepacked_gemm: bool = True
    """Weights in oneDNN's blocked layout on CPU, where the C++ kernels do not compute: twice as fast at decode."""
    kept_codes: bool = True
    """Blocks of GGUF files and coded experts stay codes on CPU, widened inside the products; off makes them floats when
    a model is loaded."""
    integer_tiles: bool = True
    """Weights and activations of 8 bits are multiplied by tiles where a step has some rows and the CPU has AMX; off
    multiplies them by vectors, with the same bits."""
    grouped_codes: bool = True
    """Codes of 4 to 8 bits are multiplied several groups at once, looked up in registers, and their totals stay there,
    where the CPU adds in the order of the inputs; off multiplies them group by group, with the same bits."""
    panel_runs: bool = True
    """Threads take the panels of a product in runs, so that what is fetched ahead is computed by the same thread; off
    takes them one by one, in turn, with the same bits."""
    whole_step: bool = True
    """A model's forward pass by one call of the C++ kernels; off is a call per operation."""
    whole_step_adapters: bool = True
    """Steps with adapters by that one call, too; off computes them operation by operation, with the same bits. Needs
    ``whole_step`` and ``sorted_adapters``."""
    whole_step_experts: bool = True
    """Models with experts by that one call, too; off computes them operation by operation, with the same bits. Needs
    ``whole_step``."""
    packed_keys: bool = True
    """K lies in the KV pages as the C++ kernels read it, and a row of one token reads both K and V there; off keeps K
    as rows of heads, which every tile copies and turns round first."""
    native_sinks: bool = True
    """Attention sinks (StreamingLLM) by the C++ kernels on CPU, where setup could build them; off is torch."""
    fused_ops: bool = True
    """Norms and the activation by the C++ or Triton kernels, too; off leaves them to torch."""
    native_sampler: bool = True
    """Sample a batch by one call of the C++ kernels on CPU, where setup could build them; off is torch, same tokens."""
    kept_inputs: bool = True
    """On CPU, while the rows of a step are those of the one before, each a token further, move its inputs and the
    arguments of its kernels on; off lays them out again in every step, with the same bits."""
    sorted_adapters: bool = True
    """Sort the rows of a step by adapter once, instead of gathering them in every layer."""
    triton_kernels: bool = False
    """Attention and layer operations by Triton; device cuda turns it on."""
    exact_kernels: bool = False
    """On a GPU, attention and matrix products whose results depend on neither batch nor chunk; slower."""
    split_kv: bool = True
    """On a GPU, split long contexts over several programs when few rows decode."""
    balanced_kv: bool = True
    """On a GPU, split each context by its own length, however many rows decode; off splits all of a step into equally
    many parts, which are one from some 33 rows on."""
    grouped_lora: bool = True
    """On a GPU, add the adapters of a step by grouped kernels, in captured steps too; off adds one after the other, and
    runs every step with adapters eagerly, as exact kernels do. Needs ``sorted_adapters``."""
    grouped_experts: bool = True
    """On a GPU, all experts of a layer by one product, routed on the device, in captured steps too; off asks the host
    and runs one expert after the other."""
    triton_sampler: bool = True
    """On a GPU, sample without sort and without waiting for the device; off is the portable one."""
    split_sampler: bool = True
    """On a GPU, several programs draw a row's token; off is one program a row."""
    copy_stream: bool = True
    """On a GPU, move KV by one kernel per frame, on a stream of its own; off moves it block by block after the steps
    that are launched."""
    cuda_graphs: bool = True
    """On a GPU, capture decode steps once and replay them; off launches every kernel again."""
    gemm_choice: bool = True
    """On a GPU, measure at start which kernel is fastest for the matrix products of decode steps of up to 64 rows: the
    framework's libraries or our own; off takes the framework's choice. It lengthens the start by seconds."""
    prepare_kernel: bool = True
    """On a GPU, make the inputs of a decode step by one kernel within the captured step, from one copy of what the host
    sends; off launches some fifteen small kernels before it."""
    dependent_launch: bool = True
    """On a GPU of compute capability 9.0 or more, launch small kernels and attention of a layer while the kernel before
    them still runs (programmatic dependent launch); off waits for its end."""

    @property
    def captures_adapters(self) -> bool:
        """Decode steps with adapters are captured, too."""
        return self.grouped_lora and self.sorted_adapters and not self.exact_kernels
