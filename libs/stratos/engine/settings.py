"""Configuration of an engine; built by a worker service from its settings, passed by argument."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Bounds of one step and of the queues."""

    max_num_seqs: int = 64
    """Sequences in the running batch."""
    max_num_batched_tokens: int = 512
    """Token budget of one step: decodes first, prefill chunks take the rest."""
    max_num_waiting: int = 1024
    """Requests that may wait; more are refused as ``Overloaded``."""
    enable_prefix_cache: bool = True
    """Ablation switch: share full blocks between requests with equal prefixes."""
    enable_chunked_prefill: bool = True
    """Ablation switch: off computes a prompt in one step, whatever the budget."""
    step_time_budget_ms: float = 0.0
    """Prefill chunks are sized so that a step with streams is predicted to take no longer, or twice what its streams
    take alone; 0 is off: the token budget alone."""
    admission_mark: float = 0.90
    """Share of the KV pool that admission may fill; who emitted tokens already may fill all of it."""
    admission_counts_budgets: bool = True
    """The output that admitted sequences are expected to need counts as taken; off: only blocks that are held count,
    more is admitted, and preemption takes back what was too much."""
    default_output_tokens: int = 256
    """Stands for the model's p90 output length until enough choices have ended."""
    ageing_step_s: float = 2.0
    """One class up after this much waiting and after each further step."""
    admissions_per_aged: int = 10
    """While a higher class is backlogged, at most one of so many admissions goes to an aged sequence."""
    enable_kv_cache: bool = True
    """Baseline switch: off computes the whole sequence again for every token; shares nothing and runs with lag 0."""
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    """Baseline switch: "contiguous" gives every sequence the blocks of a whole context at admission; shares nothing."""
    batching: Literal["continuous", "static"] = "continuous"
    """Baseline switch: "static" admits only when every sequence of the batch before has ended."""
    scheduling: Literal["mixed", "prefill-first"] = "mixed"
    """Baseline switch: "prefill-first" never mixes: decodes run in steps in which no prompt could."""
    enable_host_tier: bool = True
    """Ablation switch: keep evicted and preempted KV in host memory, where ``host_pool_bytes`` gives some."""
    enable_swap_costs: bool = True
    """Ablation switch: off copies to and from host memory whenever there is room, whatever recomputing would cost."""
    enable_window_release: bool = True
    """Ablation switch: where a model's window is bounded, give up blocks that no token sees again; off keeps them."""
    lag: Literal[0, 1] | None = None
    """Steps launched before the step before them is collected: 0 or 1; ``None`` takes what suits the runner."""
    enable_parallel_grammar_masks: bool | None = None
    """Fill grammar masks in threads beside the forward pass, or in the step loop. ``None``: beside it where the runner
    computes on a device, and so leaves cores free; on CPU the threads take cores from the forward pass."""
    max_compiled_grammars: int = 64
    """Compiled grammars kept; one is about a megabyte, at most about 100."""

    @property
    def shares_prefixes(self) -> bool:
        """Requests may share blocks; the baselines without paging cannot."""
        return self.enable_prefix_cache and self.enable_kv_cache and self.kv_allocation == "paged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """How the model is loaded and run."""

    model_path: Path
    model_digest: str = ""
    """Handed over by the process that started this one (``core.files.handed_digest``); empty: computed."""
    dtype: str = "float32"
    """"float32" or "bfloat16": compute type and KV type."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """"auto" keeps KV in the compute type; "fp8" (e4m3, GPU) in half the bytes, scaled as the checkpoint says."""
    block_size: int = 16
    """Tokens per KV block."""
    kv_pool_bytes: int = 256 * 1024 * 1024
    """Bytes of the KV pages; the number of blocks follows."""
    host_pool_bytes: int = 0
    """Bytes of the host tier of the KV pool; 0 has none. A CPU's pool is host memory already: grow the pool there."""
    attention_window: int = 0
    """StreamingLLM: tokens that a token sees up to itself, whatever the model was trained with; 0 is off."""
    attention_sinks: int = 0
    """StreamingLLM: first tokens of a sequence that every token sees besides its window; 4 do for most models."""
    max_stream_len: int = 1 << 20
    """StreamingLLM: longest sequence; its KV is bounded, its list of tokens is not."""
    max_resident_adapters: int = 8
    """Adapters held by the runner; the least recently used one without a sequence makes room."""
    host_adapter_bytes: int = 1 << 30
    """Host memory for copies of adapters, those in slots included: loading one again touches no disk; 0 keeps none."""
    enable_sorted_adapters: bool = True
    """Ablation switch: rows of a step are sorted by adapter, so that layers work on slices; off gathers per layer."""
    num_threads: int = 0
    """Threads of one operation; 0 measures what is fastest under the present load, up to torch's default."""
    enable_prepacked_gemm: bool = True
    """Ablation switch: oneDNN pre-packed weights for linear layers on CPU that the C++ kernels do not compute."""
    enable_native_gemm: bool = True
    """Ablation switch: linear layers by the C++ kernels on CPU, where they are built; off leaves them to oneDNN."""
    exact: bool = True
    """On CPU, a token's result depends neither on its batch nor on chunks, prefix hits, or prefill against decode."""
    enable_native_kernels: bool = True
    """Ablation switch: attention and layer operations by the C++ kernels on CPU, where they are built."""
    enable_whole_step: bool = True
    """Ablation switch: a dense model's forward pass is one call of the C++ kernels; off is a call per operation."""
    enable_fused_ops: bool = True
    """Ablation switch: norms and the activation by the C++ kernels, too; off leaves them to torch."""
    enable_triton_kernels: bool = False
    """Attention and layer operations by Triton; the GPU's runner asks for them."""
    enable_exact_kernels: bool = False
    """GPU: attention and matrix products whose results depend on neither batch nor chunk; slower."""
    enable_split_kv: bool = True
    """Ablation switch, GPU: a long context is split over several programs when few rows decode."""
    enable_triton_sampler: bool = True
    """Ablation switch, GPU: sample without sort and without waiting for the device; off is the portable sampler."""
    enable_cuda_graphs: bool = True
    """Ablation switch, GPU: decode steps are captured once and replayed."""
    max_graph_batch: int = 256
    """GPU: rows of the largest decode step with static buffers; larger ones run eagerly."""
