"""Makes the engine that the settings name. The torch runner is imported only here, and only when asked for."""

from __future__ import annotations

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import read_json
from stratos.engine.contract.runner import Runner
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeRunner
from stratos.engine.settings import RunnerConfig
from stratos.worker.settings import WorkerSettings


def make_engine(settings: WorkerSettings) -> EngineCore:
    """Load the model and make the engine. Blocks for as long as loading takes.

    Raises:
        InvalidCheckpoint: the model folder is missing or cannot be served.
    """
    try:
        runner = FakeRunner.load(settings.fake) if settings.engine == "fake" else _torch_runner(settings)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(error.message) from None  # the message says all; its cause would print a traceback
    return EngineCore(runner, settings.scheduler)


def _torch_runner(settings: WorkerSettings) -> Runner:
    config = settings.runner
    read_json(config.model_folder() / "config.json")  # a wrong path is told before torch takes its seconds to load
    if settings.device == "cuda" and not config.attention_window:
        return _cuda_runner(config, settings.scheduler.max_num_seqs)
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
