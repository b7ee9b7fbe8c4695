"""Everything that is measured of one worker, made once its engine is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from stratos.core.placement import WorkerRef
from stratos.engine.contract.results import EngineStatus, StepResult
from stratos.engine.contract.runner import RunnerInfo
from stratos.rpc.instruments import gauge
from stratos.worker.meters.gpu import register_gpu
from stratos.worker.meters.memory import MemoryMeter
from stratos.worker.meters.operations import OperationMeter
from stratos.worker.meters.settings import WorkerObserveConfig
from stratos.worker.meters.steps import StepMeter

# fmt: off
WORKER_INFO = gauge(
    "stratos_worker_info", "1 for a worker: what it is, to join other series with.",
    "worker", "role", "model", "model_digest", "device",
)
# fmt: on
DEVICE_HOUR_PRICE = gauge(
    "stratos_device_hour_price", "Price of an hour of the worker's device, as set.", "role", "model"
)


@dataclass(frozen=True, slots=True)
class Meters:
    """Belongs to the event loop."""

    steps: StepMeter
    memory: MemoryMeter
    operations: OperationMeter

    def on_step(self, result: StepResult) -> None:
        """Take note of a step."""
        self.steps.on_step(result)
        self.operations.on_step(result)

    def show(self, status: EngineStatus, now_s: float) -> None:
        """Bring what follows from time and status up to date; called often."""
        self.steps.show_rate(now_s)
        self.memory.observe(status)


def open_meters(
    registry: CollectorRegistry,
    config: WorkerObserveConfig,
    info: RunnerInfo,
    *,
    me: WorkerRef,
    model: str,
    device: str,
    environ: Mapping[str, str],
) -> Meters:
    """Make the meters, and the series that never change.

    Args:
        registry: of the process.
        config: names and prices.
        info: of the loaded model.
        me: this worker.
        model: name of its model.
        device: "cpu" or "cuda".
        environ: names its own GPU.
    """
    about = WORKER_INFO.open(registry)
    about.labels(me.worker_id, me.role.value, model, info.identity.model_digest, device).set(1)
    if config.device_hour_price:
        DEVICE_HOUR_PRICE.open(registry).labels(me.role.value, model).set(config.device_hour_price)
    if device == "cuda":
        register_gpu(registry, environ)
    return Meters(
        StepMeter(registry),
        MemoryMeter(registry, info, config.peak_memory_bytes_per_s),
        OperationMeter(registry, info, config.peak_operations_per_s),
    )
