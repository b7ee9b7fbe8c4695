"""Makes the engine that the settings name. The torch runner is imported only here, and only for the engine "torch"."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from stratos.common.errors import InvalidCheckpoint
from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.files import TlsFiles
from stratos.core.files.model_files import read_json
from stratos.core.kv import KvGeometry
from stratos.engine.contract.runner import Runner
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeRunner
from stratos.engine.native.looks import bounded_looks
from stratos.engine.settings import RunnerConfig
from stratos.engine.sizing.device import device_choices, keeps_codes, kernels_choice
from stratos.engine.sizing.fit import draft_config, fitted
from stratos.engine.sizing.machine import read_machine
from stratos.engine.sizing.need import read_need
from stratos.engine.sizing.plan import EnginePlan
from stratos.engine.sizing.report import choices_block, machine_line
from stratos.engine.speculation.making import make_proposer
from stratos.kv_transfer.device.rings import planned_bytes
from stratos.kv_transfer.port.local import PortTransport
from stratos.kv_transfer.registry import find_faults, port_transports
from stratos.worker.engine_client.thread import ThreadEngine
from stratos.worker.settings import WorkerSettings

STAGING_PAIRS = 4
"""Sources that send at once, as far as memory is planned: staging grows with them."""
SPINS = "GOMP_SPINCOUNT"
"""Says how often a thread of a team looks for the others before it sleeps.

GNU's run-time looks 300,000 times, which is milliseconds.  Where something else wants the cores, a thread that looks
for one that has none keeps a core from it: decode steps took up to six times as long as with 10,000.
"""
_log = logging.getLogger(__name__)


def make_thread_engine(settings: WorkerSettings) -> ThreadEngine:
    """Make the engine and what drives it in this process. Blocks and raises as ``make_engine``."""
    return drive_engine(make_engine(settings), settings)


def drive_engine(engine: EngineCore, settings: WorkerSettings) -> ThreadEngine:
    """A client with the transports that the settings name, in this process."""
    device = engine.info.device.uuid
    faults = find_faults(settings.transport, device=device)
    transports = transports_of(settings, engine.info.geometry, device=device)
    return ThreadEngine(engine, transports=transports, faults=faults)


def transports_of(settings: WorkerSettings, geometry: KvGeometry, *, device: str) -> dict[str, PortTransport]:
    """Transports of a data port in this process, with slots for KV of ``geometry``; ``device``: UUID of its GPU."""
    tls = None if settings.tls is None else TlsContexts(TlsFiles(settings.tls))
    transport = settings.transport.fitted(geometry.token_bytes, geometry.state_layer_bytes)
    return port_transports(transport, tls=tls, device=device)


def make_engine(settings: WorkerSettings) -> EngineCore:
    """Load the model and make the engine. Blocks for as long as loading takes.

    Raises:
        InvalidCheckpoint: the model folder is missing or cannot be served, or is worse than it says of itself; or the
            disk tier's directory cannot be used.
    """
    try:
        runner = FakeRunner.load(settings.engine_fake) if settings.engine == "fake" else _torch_runner(settings)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(error.message) from None  # the message is complete; its cause would print a traceback
    proposer = make_proposer(settings.steps, runner, _draft_runner(settings, runner))
    return EngineCore(runner, settings.steps, proposer=proposer, disk=settings.disk_tier)


def _draft_runner(settings: WorkerSettings, target: Runner) -> Runner | None:
    """The runner of the draft model, where the settings name one for an engine that has it."""
    if settings.engine == "fake" or settings.device == "cuda":
        return None
    from stratos.engine.runner.torch_runner import TorchRunner

    assert isinstance(target, TorchRunner)
    config = draft_config(fitted(settings.runner, target.plan), settings.steps)
    return None if config is None else TorchRunner.load(config, settings.device)


def _torch_runner(settings: WorkerSettings) -> Runner:
    config = settings.engine_runner
    read_json(config.model_folder() / "config.json")  # a wrong path is reported before torch takes its seconds to load
    if not os.environ.keys() & {"OMP_WAIT_POLICY", SPINS}:
        os.environ[SPINS] = str(bounded_looks())  # OpenMP reads it as torch loads it
    if settings.device == "cuda" and not config.streaming.is_on:
        return _cuda_runner(settings)
    with _without_collections():
        from stratos.engine.runner.torch_runner import TorchRunner

    # StreamingLLM has no CUDA kernels: torch's, on the same device
    runner = TorchRunner.load(
        config, settings.device, scheduler=settings.scheduler, transport_bytes=transport_bytes(settings)
    )
    _log_choices(settings, runner.plan)
    if settings.device == "cpu":
        from stratos.quality.expected import check_expected

        check_expected(runner, config.model_folder())
    return runner


@contextmanager
def _without_collections() -> Iterator[None]:
    """Torch makes very many objects that stay: looking for garbage among them is a seventh of its import."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _log_choices(settings: WorkerSettings, plan: EnginePlan) -> None:
    machine = read_machine()
    choices = (*plan.choices, *device_choices(settings.device, settings.scheduler, settings.engine_process))
    if settings.device == "cpu":
        choices = (*choices, kernels_choice(settings.runner, machine.cpu_flags))
    _log.info("%s", choices_block(f"engine on {settings.device}: {machine_line(machine)}", choices))


def transport_bytes(settings: WorkerSettings) -> int:
    """Staging memory that lies in the memory of the device: rings on a GPU, slots in host memory on a CPU."""
    transport = settings.transport
    if not transport.staging.slot_bytes:
        transport = transport.fitted(*_wire_bytes(settings.runner, is_gpu=settings.device == "cuda"))
    if settings.device == "cuda":
        return planned_bytes(transport)
    staging = transport.staging
    return STAGING_PAIRS * staging.slots_per_pair * staging.slot_bytes


def _wire_bytes(config: RunnerConfig, *, is_gpu: bool) -> tuple[int, int]:
    """Bytes of the KV of a token, and of the state of a layer."""
    is_kept = keeps_codes(config, is_gpu=is_gpu)
    need = read_need(config.model_folder(), config.quantization, keeps_codes=is_kept)
    dtype = need.stored_dtype if config.dtype == "auto" else config.dtype
    return need.token_bytes(dtype, config.kv_dtype, has_scales=not is_gpu), need.state_layer_bytes


def _cuda_runner(settings: WorkerSettings) -> Runner:
    config, max_num_seqs = settings.engine_runner, settings.scheduler.max_num_seqs
    try:
        from stratos.engine.runner.cuda.runner import CudaRunner, max_sequences
    except ModuleNotFoundError as error:
        raise InvalidCheckpoint(f"device cuda needs {error.name}: install the extra stratosserve[gpu]") from error
    if max_num_seqs > max_sequences(config):
        raise InvalidCheckpoint(
            f"max_num_seqs={max_num_seqs} is more than the {max_sequences(config)} that max_graph_batch="
            f"{config.max_graph_batch} allows; raise max_graph_batch to half of it"
        )
    runner = CudaRunner.load(config, scheduler=settings.scheduler, transport_bytes=transport_bytes(settings))
    _log_choices(settings, runner.plan)
    return runner
