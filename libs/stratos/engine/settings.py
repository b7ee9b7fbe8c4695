"""Configuration of an engine: what an operator sets, with groups for what only a benchmark switches (``switches``).

A worker's settings hold ``SchedulerConfig`` and ``RunnerConfig``; every other user passes them by argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, Le, Lt

from stratos.common.errors import InvalidCheckpoint
from stratos.core.rules.admission import KV_WATERMARK
from stratos.core.rules.ageing import AGEING_STEP_S, DISPATCHES_PER_AGED
from stratos.engine.switches import Baselines, KernelSwitches, SchedulerSwitches

CPU_TOKEN_BUDGET, GPU_TOKEN_BUDGET = 512, 2048
"""Tokens of a step: a GPU is filled by some thousand rows, a core by a few hundred, and more only delay the streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Drafted tokens that a pass verifies beside the one it computes anyway; no token of a stream changes by it."""

    method: Literal["auto", "off", "ngram", "suffix", "draft", "self"] = "auto"
    """Who drafts: "ngram" takes what followed the last tokens when the request had them before, "suffix" also when
    others of its tenant had, "draft" is a small model, "self" the model itself with int4 weights. On a CPU alone;
    "auto" is "ngram" there and "off" elsewhere."""
    model_path: Path | None = None
    """Folder of the draft model for the method "draft"; its vocabulary is the model's."""
    num_speculative_tokens: Annotated[int, Interval(ge=1, le=16)] = 8
    """Drafted tokens of a row at most."""
    is_adaptive: bool = True
    """Run as many of them as pay by the measured cost of steps, none included; off runs all, for measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Bounds of one step and of the queues."""

    max_num_seqs: Annotated[int, Ge(1)] = 64
    """Sequences in one batch."""
    max_num_batched_tokens: Annotated[int, Ge(1)] | None = None
    """Token budget of one step, decodes first: bounds how long a prefill chunk delays the others; unset takes 512 on a
    CPU and 2048 on a GPU."""
    max_num_waiting: Annotated[int, Ge(1)] = 1024
    """Requests that may wait in the engine; more are refused."""
    step_time_budget_ms: Annotated[float, Ge(0)] = 100.0
    """Prefill chunks and drafts are cut so that a step with streams is predicted to take no longer, or no longer than
    twice what its streams take alone; 0 is off: the token budget alone."""
    kv_watermark: Annotated[float, Gt(0), Le(1)] = KV_WATERMARK
    """Share of the KV pool that admission may fill; streams that emitted tokens already may fill all of it."""
    admission_counts_budgets: bool = True
    """The output that admitted streams are expected to need counts as taken; off admits more and preempts more."""
    default_output_tokens: Annotated[int, Ge(1)] = 256
    """Expected output of a choice, for admission, until enough choices have ended to know their 90th percentile."""
    ageing_step_s: Annotated[float, Gt(0)] = AGEING_STEP_S
    """A waiting request moves up one class after this time and after each further step of it."""
    admissions_per_aged: Annotated[int, Ge(1)] = DISPATCHES_PER_AGED
    """While a higher class is backlogged, at most one of so many admissions goes to an aged sequence."""
    short_prompt_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.25
    """Share of a tenant's prompt tokens of a step that its first prompt leaves to its others, fewest tokens first; 0
    serves the prompts of a tenant and class one after the other."""
    max_passed_steps: Annotated[int, Ge(1)] = 8
    """A prompt in the batch that got nothing in so many steps, because of higher classes or shorter prompts, gets a
    block of the next one. Streams of the lowest class are paused for no more steps in a row."""
    batch_step_ms: Annotated[float, Ge(0)] = 25.0
    """While requests above the lowest class come, prompts of that class are cut so that a step is predicted to take no
    longer, or no longer than twice what its streams take alone; 0 is off. Needs ``batch_pauses``."""
    max_ready_jobs: Annotated[int, Ge(1)] = 4
    """Prefill jobs of one receiver and tenant that hold blocks while they wait for their grants, which hides a round
    trip; jobs of lower classes do not count."""
    max_compiled_grammars: Annotated[int, Ge(1)] = 64
    """Compiled grammars kept; one is about a megabyte, at most about 100."""
    max_cache_changes: Annotated[int, Ge(0)] = 32768
    """Last changes of the prefix cache that are kept for routers; one that falls further back gets the whole cache."""
    snapshot_blocks: Annotated[int, Ge(1)] = 16
    """KV blocks between two places at which the recurrent state of a model that has one (Qwen3.5) is kept, so that
    another prompt can go on there; the end of a prompt's last full block is such a place, too."""
    max_pinned_ratio: Annotated[float, Interval(ge=0, le=0.9)] = 0.5
    """Part of the KV pool, and of the host tier, that blocks pinned by clients may take, all tenants together; 0 pins
    nothing. Live sequences take pinned blocks, too, after all others."""
    max_pin_s: Annotated[int, Interval(ge=1, le=86_400)] = 86_400
    """A block is kept no longer than this after its last use, whatever its client asked and pays for."""
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    switches: SchedulerSwitches = field(default_factory=SchedulerSwitches)
    baseline: Baselines = field(default_factory=Baselines)

    @property
    def token_budget(self) -> int:
        """Tokens of one step: ``max_num_batched_tokens``; unset, a CPU's."""
        return self.max_num_batched_tokens or CPU_TOKEN_BUDGET

    @property
    def max_batch_slots(self) -> int:
        """Sequences of a full batch: each decode gets its token in each step."""
        return min(self.max_num_seqs, self.token_budget)

    def for_device(self, device: str) -> SchedulerConfig:
        """A copy with the token budget of ``device`` where none is set."""
        budget = GPU_TOKEN_BUDGET if device == "cuda" else CPU_TOKEN_BUDGET
        return replace(self, max_num_batched_tokens=self.max_num_batched_tokens or budget)

    @property
    def shares_steps(self) -> bool:
        """Prompts share steps; the baselines serve one after the other, as does a step that takes prompts whole."""
        is_cut = self.switches.chunked_prefill and self.baseline.kv_cache
        is_mixed = self.baseline.scheduling == "mixed" and self.baseline.batching == "continuous"
        return self.switches.fair_prompts and is_cut and is_mixed

    @property
    def shares_prefixes(self) -> bool:
        """Requests may share blocks; the baselines without paging cannot."""
        return self.switches.prefix_cache and self.baseline.is_paged

    def step_tokens(self, max_model_len: int) -> int:
        """Tokens that one step computes at most."""
        return self.token_budget if self.switches.chunked_prefill else max_model_len


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingConfig:
    """StreamingLLM: sequences that outgrow the model's context, over a window of their last tokens."""

    attention_window: Annotated[int, Ge(0)] = 0
    """Tokens that a token sees up to itself; sequences may outgrow the model's context. 0 is off."""
    attention_sinks: Annotated[int, Ge(0)] = 0
    """First tokens of a sequence that every token sees in addition to the window; 4 do for most."""
    max_stream_len: Annotated[int, Ge(1)] = 1 << 20
    """Longest sequence; its KV is bounded, its list of tokens is not."""

    @property
    def is_on(self) -> bool:
        """Sequences may outgrow the model's context."""
        return self.attention_window > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """How the model is loaded and run."""

    model_path: Path | None = None
    """Hugging Face model folder; required to load a model."""
    model_digest: str = ""
    """Digest of the model folder and state of its files, as `stratos up` hands it over; empty: computed at start."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute and KV type; float32 equals the reference implementation token by token. "auto" takes what the
    checkpoint stores, on a CPU float32 for small models."""
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"
    """"auto" keeps KV in ``dtype``; "int8" (on a CPU alone) and "fp8" (e4m3) in one byte a number. A CPU scales each
    token and head by itself, a GPU as the checkpoint says. The same at all workers of a model."""
    quantization: Literal["auto", "int8", "int4", "fp8", "mxfp4", "nf4", "llm-int8", "int8+head", "int4+head"] = "auto"
    """Weights of linear layers: "auto" as the checkpoint stores them; the others quantise float weights to the nearest
    code at load, on a CPU alone. "int8" cuts activations to bytes per token as well, "llm-int8" all but those of a
    size from 6 on; "int4" and "mxfp4" have groups of 32, "nf4" of 64. "+head": the
    output layer, too, in int8."""
    block_size: Annotated[int, Interval(ge=1, le=1024)] = 16
    """Tokens per KV block; smaller shares more, larger costs fewer table entries."""
    kv_pool_bytes: Annotated[int, Ge(0)] = 0
    """Bytes of the KV pool, from which the number of blocks follows. 0 fits it to the device: on a GPU all that
    ``gpu_memory_utilization`` leaves, on a CPU what a full batch is expected to use, within ``cpu_memory_share``."""
    state_slots: Annotated[int, Ge(0)] = 0
    """Recurrent states in memory, of models that have some (Qwen3.5): two for each running sequence, and one for each
    place in cached prompts from which another can go on. 0 takes three for each place of the batch."""
    max_model_len: Annotated[int, Ge(0)] = 0
    """Longest sequence, prompt and output; 0 takes the model's context, or what a pool fitted to the device holds."""
    gpu_memory_utilization: Annotated[float, Gt(0), Lt(1)] = 0.90
    """Share of a GPU's memory that weights, run-time, graphs and KV take together."""
    cpu_memory_share: Annotated[float, Gt(0), Lt(1)] = 0.50
    """On a CPU, share of what the container or machine has left after the weights that a KV pool may take."""
    host_pool_bytes: Annotated[int, Ge(0)] = 0
    """Bytes of host memory for evicted and preempted KV; 0 is off. Without a GPU grow the pool: it is host memory."""
    host_memory_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Beside a GPU, share of the host's free memory that evicted and preempted KV may take, where that is more than
    ``host_pool_bytes``: at most four times the KV pool, and 32 GiB; below 256 MiB it takes none."""
    num_threads: Annotated[int, Ge(0)] = 0
    """Threads of one operation; 0 measures at start, and again when steps are slow, what is fastest on this machine.
    In exact mode without the C++ kernels, workers pair only with equal numbers."""
    max_resident_adapters: Annotated[int, Ge(0)] = 8
    """Adapters in the runner at once; the least recently used one without a sequence makes room. 0: none, and none of
    the memory is kept for them."""
    host_adapter_bytes: Annotated[int, Ge(0)] = 1 << 30
    """Host memory for copies of adapters, those in the runner included: loading one again touches no disk; 0 keeps
    none."""
    exact: bool = True
    """On CPU, the same request gives the same tokens in any batch, chunking, prefix hit, and on any worker like it."""
    native_isa: Literal["auto", "amx", "avx512-bf16", "avx512", "avx2"] = "auto"
    """Build of the C++ kernels; "auto" takes the fastest that processor and system allow. The last bits of bfloat16
    differ between builds: unlike machines that are to share KV exactly need one that all of them have."""
    max_graph_batch: Annotated[int, Ge(1)] = 256
    """On a GPU, rows of the largest captured decode step; larger ones run eagerly."""
    streaming: StreamingConfig = field(default_factory=StreamingConfig)
    kernels: KernelSwitches = field(default_factory=KernelSwitches)

    def model_folder(self) -> Path:
        """``model_path``, where a model is loaded. Raises ``InvalidCheckpoint`` when it is not set."""
        if self.model_path is None:
            raise InvalidCheckpoint("the torch engine needs a model: set its model_path to a Hugging Face model folder")
        return self.model_path


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTierConfig:
    """KV blocks in files, below host memory: sealed for their tenants, and found again after a restart."""

    directory: Path = Path("/tmp/stratos-kv")  # noqa: S108 - every file is sealed and verified
    """Folder of the files; each worker of a host needs its own."""
    max_bytes: Annotated[int, Ge(0)] = 0
    """Bytes of all files; 0 is off. The least recently used go first."""
    max_tenant_ratio: Annotated[float, Gt(0), Le(1)] = 0.5
    """Part of it that the blocks of one tenant may take."""
    staging_bytes: Annotated[int, Ge(1)] = 256 * 1024**2
    """Host memory that blocks go through where ``host_pool_bytes`` is 0; one request loads half of it at most."""
    load_timeout_s: Annotated[float, Gt(0)] = 2.0
    """A request waits for so long at most for a disk that does not answer; then the disk is left alone for a while."""

    @property
    def is_on(self) -> bool:
        """There is a disk tier."""
        return self.max_bytes > 0
