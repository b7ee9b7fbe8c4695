"""Makes the engine that the settings name. The torch runner is imported only here, and only when asked for."""

from __future__ import annotations

from typing import Literal, cast

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json, read_model_files
from stratos.engine.contract.runner import Runner
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.worker.settings import WorkerSettings


def make_engine(settings: WorkerSettings) -> EngineCore:
    """Load the model and make the engine. Blocks for as long as loading takes.

    Raises:
        InvalidCheckpoint: the model folder is missing or cannot be served.
    """
    scheduler = SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_waiting=settings.max_num_waiting,
        step_time_budget_ms=settings.step_time_budget_ms,
        enable_prefix_cache=settings.enable_prefix_cache,
        enable_kv_cache=settings.enable_kv_cache,
        kv_allocation=settings.kv_allocation,
        batching=settings.batching,
        scheduling=settings.scheduling,
        lag=cast("Literal[0, 1] | None", settings.step_lag),
        admission_mark=settings.admission_mark,
        admission_counts_budgets=settings.admission_counts_budgets,
        default_output_tokens=settings.default_output_tokens,
        enable_parallel_grammar_masks=settings.enable_parallel_grammar_masks,
        enable_host_tier=settings.enable_host_tier,
        enable_swap_costs=settings.enable_swap_costs,
        enable_window_release=settings.enable_window_release,
    )
    try:
        runner = _fake_runner(settings) if settings.engine == "fake" else _torch_runner(settings)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(error.message) from None  # the message says all; its cause would print a traceback
    return EngineCore(runner, scheduler)


def _fake_runner(settings: WorkerSettings) -> Runner:
    path = settings.model_path
    files = read_model_files(path, settings.model_digest) if path is not None else None
    return FakeRunner(
        FakeConfig(
            worker_weight=settings.fake_worker_weight,
            num_blocks=settings.fake_num_blocks,
            num_host_blocks=settings.fake_num_host_blocks,
            block_size=settings.block_size,
            vocab_size=files.vocab_size if files else settings.fake_vocab_size,
            max_model_len=files.max_model_len if files else settings.fake_max_model_len,
            eos_token_ids=files.eos_token_ids if files else (),
            model_digest=files.digest if files else "fake",
            model_path=settings.model_path,
            step_s=settings.fake_step_s,
            token_s=settings.fake_token_s,
            lag=1 if settings.step_lag else 0,
        )
    )


def _torch_runner(settings: WorkerSettings) -> Runner:
    if settings.model_path is None:
        raise InvalidCheckpoint("the torch engine needs a model: set MODEL_PATH to a Hugging Face model folder")
    read_json(settings.model_path / "config.json")  # a wrong path is told before torch takes its seconds to load
    config = RunnerConfig(
        model_path=settings.model_path,
        model_digest=settings.model_digest,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        block_size=settings.block_size,
        kv_pool_bytes=settings.kv_pool_bytes,
        host_pool_bytes=settings.host_pool_bytes,
        attention_window=settings.attention_window,
        attention_sinks=settings.attention_sinks,
        max_stream_len=settings.max_stream_len,
        max_resident_adapters=settings.max_resident_adapters,
        host_adapter_bytes=settings.host_adapter_bytes,
        enable_sorted_adapters=settings.enable_sorted_adapters,
        num_threads=settings.num_threads,
        exact=settings.exact,
        enable_prepacked_gemm=settings.enable_prepacked_gemm,
        enable_native_gemm=settings.enable_native_gemm,
        enable_native_kernels=settings.enable_native_kernels,
        enable_whole_step=settings.enable_whole_step,
        enable_fused_ops=settings.enable_fused_ops,
        enable_split_kv=settings.enable_split_kv,
        enable_triton_sampler=settings.enable_triton_sampler,
        enable_cuda_graphs=settings.enable_cuda_graphs,
        enable_exact_kernels=settings.enable_exact_kernels,
        max_graph_batch=settings.max_graph_batch,
    )
    if settings.device == "cuda" and not settings.attention_window:
        return _cuda_runner(config, settings.max_num_seqs)
    from stratos.engine.runner.torch_runner import TorchRunner

    return TorchRunner.load(config, settings.device)  # StreamingLLM has no CUDA kernels: torch's, on the same device


def _cuda_runner(config: RunnerConfig, max_num_seqs: int) -> Runner:
    try:
        from stratos.engine.runner.cuda.runner import CudaRunner, max_sequences
    except ModuleNotFoundError as error:
        raise InvalidCheckpoint(f"device cuda needs {error.name}: install the extra stratosserve[gpu]") from error
    if max_num_seqs > max_sequences(config):
        raise InvalidCheckpoint(
            f"max_num_seqs={max_num_seqs} is more than the {max_sequences(config)} that max_graph_batch="
            f"{config.max_graph_batch} allows; raise max_graph_batch to half of it"
        )
    return CudaRunner.load(config)
