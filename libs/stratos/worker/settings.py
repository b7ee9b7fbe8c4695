"""Settings of both worker services; each service sets its prefix and its defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from stratos.rpc.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """Everything a worker can be told from outside."""

    worker_id: str = "worker-0"
    """Stable name within the deployment; shown in receipts and logs."""
    model_path: Path | None = None
    """Hugging Face model folder; needed by the torch engine. The fake engine takes digest and vocabulary from it."""
    model_digest: str = ""
    """Digest of the model folder and state of its files, as `stratos up` hands it over; empty: computed at start."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """"auto" keeps KV in DTYPE; fp8 in one byte a number, on a GPU alone, and the same at all workers of a model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute and KV type; float32 equals the reference implementation token by token."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the torch engine computes; cuda needs the extra stratosserve[gpu]."""
    engine: Literal["torch", "fake"] = "torch"
    """"fake" is arithmetic by hand: a platform without a model, and tests that see which worker computed what."""
    engine_process: Literal["thread", "process"] = "thread"
    """Where the step loop runs: a thread of this process, or a process of its own that shares no interpreter lock."""
    step_lag: int | None = Field(None, ge=0, le=1)
    """Ablation switch: steps launched before the one before is collected; unset takes what suits the runner."""
    block_size: int = Field(16, ge=1, le=1024)
    """Tokens per KV block; smaller shares more, larger costs fewer table entries."""
    kv_pool_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)
    """Bytes of the KV pool; fits a laptop together with the model."""
    host_pool_bytes: int = Field(0, ge=0)
    """Bytes of host memory for evicted and preempted KV; 0 is off. Without a GPU grow the pool: it is host memory."""
    enable_host_tier: bool = True
    """Ablation switch: off leaves the host pool unused."""
    enable_swap_costs: bool = True
    """Ablation switch: off copies to host memory whenever there is room, also where computing again would cost less."""
    enable_window_release: bool = True
    """Ablation switch: a model with a sliding window in every layer gives up KV blocks that left it; off keeps them."""
    attention_window: int = Field(0, ge=0)
    """StreamingLLM: tokens that a token sees up to itself; sequences may outgrow the model's context. 0 is off."""
    attention_sinks: int = Field(0, ge=0)
    """StreamingLLM: first tokens of a sequence, seen by every token in addition to the window; 4 do for most."""
    max_stream_len: int = Field(1 << 20, ge=1)
    """StreamingLLM: longest sequence."""
    max_num_seqs: int = Field(64, ge=1)
    """Sequences in one batch."""
    max_num_batched_tokens: int = Field(512, ge=1)
    """Token budget of one step: bounds how long a prefill chunk delays the others."""
    max_num_waiting: int = Field(1024, ge=1)
    """Requests that may wait in the engine; more are refused."""
    step_time_budget_ms: float = Field(100.0, ge=0)
    """Prefill chunks are cut so that a step with streams is predicted to take no longer, or no longer than twice what
    its streams take alone; 0 is off: the token budget alone."""
    admission_mark: float = Field(0.90, gt=0, le=1)
    """Share of the KV pool that admission may fill; streams that emitted tokens already may fill all of it."""
    admission_counts_budgets: bool = True
    """The output that admitted streams are expected to need counts as taken; off admits more and preempts more."""
    default_output_tokens: int = Field(256, ge=1)
    """Expected output of a choice, for admission, until enough choices have ended to know their 90th percentile."""
    enable_parallel_grammar_masks: bool | None = None
    """Fill the masks of structured output in threads during the forward pass; unset does so with a GPU only, since on
    CPU those threads take cores from the forward pass."""
    enable_prefix_cache: bool = True
    """Share full blocks between requests with equal prefixes; off for comparison."""
    enable_kv_cache: bool = True
    """Baseline for comparison: off computes the whole sequence again for every token."""
    kv_allocation: Literal["paged", "contiguous"] = "paged"
    """Baseline for comparison: "contiguous" gives every sequence the KV of a whole context at admission."""
    batching: Literal["continuous", "static"] = "continuous"
    """Baseline for comparison: "static" admits only when the batch before has ended."""
    scheduling: Literal["mixed", "prefill-first"] = "mixed"
    """Baseline for comparison: "prefill-first" runs decodes only in steps in which no prompt could run."""
    num_threads: int = Field(0, ge=0)
    """Threads of one operation; 0 measures at start, and again when steps are slow, what is fastest on this machine."""
    exact: bool = True
    """On CPU, the same request gives the same tokens in any batch, chunking, prefix hit, and on any worker like it."""
    enable_prepacked_gemm: bool = True
    """Weights in oneDNN's blocked layout on CPU: twice as fast at decode. Off to measure what it gains."""
    enable_native_gemm: bool = True
    """Linear layers by the C++ kernels on CPU, instead of oneDNN. Off to measure what it gains."""
    enable_native_kernels: bool = True
    """C++ kernels for attention and layer operations on CPU, where setup could build them."""
    enable_whole_step: bool = True
    """A dense model's forward pass by one call of the C++ kernels. Off to measure what it gains."""
    enable_fused_ops: bool = True
    """Norms and the activation by the C++ kernels, too. Off to measure what they gain."""
    enable_split_kv: bool = True
    """On a GPU, split long contexts over several programs when few rows decode. Off to measure what it gains."""
    enable_triton_sampler: bool = True
    """On a GPU, sample without sort and without waiting for the device; off takes the portable sampler."""
    enable_cuda_graphs: bool = True
    """On a GPU, capture decode steps once and replay them; off launches every kernel again in every step."""
    enable_exact_kernels: bool = False
    """On a GPU, attention and matrix products whose results depend on neither batch nor chunk; slower."""
    max_graph_batch: int = Field(256, ge=1)
    """On a GPU, rows of the largest captured decode step; larger ones run eagerly."""
    kv_transports: list[Literal["shm", "gloo"]] = Field(default_factory=lambda: ["shm", "gloo"], min_length=1)  # type: ignore[arg-type]
    """KV transports, best first; shm is used only between workers of one host."""
    staging_slots: int = Field(16, ge=1, le=4096)
    """Staging slots per source: hand-offs one source can have granted at once."""
    staging_slot_bytes: int = Field(1024 * 1024, ge=4096)
    """Largest frame; a prompt chunk above it becomes several frames."""
    shm_dir: Path = Path(f"/dev/shm/stratos-{os.getuid()}")  # noqa: S108 - the transport checks owner and mode
    """Private directory of the shm transport; the same for all workers of a host."""
    gloo_host: str = "127.0.0.1"
    """Address that the Gloo transport listens on; peers must reach it."""
    local_prefill_max_tokens: int = Field(16, ge=0)
    """An uncached tail up to this long is computed at the decode worker: one block costs less than a hand-off."""
    object_store_url: str = ""
    """file:///dir or s3://bucket/prefix; where adapters come from. Empty: only adapters in the cache."""
    s3_endpoint_url: str = ""
    """Endpoint of an S3-compatible store; empty takes AWS."""
    adapter_cache_dir: Path = Path("/tmp/stratos-adapters")  # noqa: S108 - content is checked by digest
    """Checked adapters, one folder per digest; each worker of a host needs its own."""
    adapter_cache_bytes: int = Field(2 * 1024**3, ge=0)
    """Least recently used adapters beyond this are removed from disk."""
    max_resident_adapters: int = Field(8, ge=1)
    """Adapters in the engine at once."""
    host_adapter_bytes: int = Field(1024**3, ge=0)
    """Host memory for copies of adapters, those in the engine included: loading one again touches no disk; 0 keeps
    none."""
    enable_sorted_adapters: bool = True
    """Ablation switch: sort the rows of a step by adapter once, instead of gathering them in every layer."""
    fetch_progress_timeout_s: float = Field(1.0, gt=0)
    """A source that says nothing for this long is lost; it speaks every 250 ms."""
    fetch_stall_timeout_s: float = Field(2.0, gt=0)
    """A source whose step counter stands still for this long, or for 4 of its slow steps, while it computes, hangs."""
    fetch_frame_timeout_s: float = Field(10.0, gt=0)
    """An announced frame must be complete within this time: one slot takes milliseconds on any network."""
    orphan_ttl_s: float = Field(5.0, ge=0)
    """Requests of a broken session are freed after this long; a gateway reconnects within a second."""
    step_stall_timeout_s: float = Field(5.0, gt=0)
    """Not ready when it computes and its step counter stands still for this long (at least 4 of its slow steps)."""
    fake_worker_weight: int = 1
    """Fake engine: differs per worker, so that tokens tell which worker computed them."""
    fake_num_blocks: int = Field(256, ge=1)
    """Fake engine: KV blocks."""
    fake_num_host_blocks: int = Field(0, ge=0)
    """Fake engine: blocks in host memory."""
    fake_vocab_size: int = Field(4096, ge=2)
    """Fake engine without a model folder: vocabulary."""
    fake_max_model_len: int = Field(4096, ge=2)
    """Fake engine without a model folder: context."""
    fake_step_s: float = Field(0.0, ge=0)
    """Fake engine: least duration of a step."""
    fake_token_s: float = Field(0.0, ge=0)
    """Fake engine: duration added per token, so that prefill takes time."""
