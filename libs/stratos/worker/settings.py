"""Settings of both worker services, and the groups that the worker library itself takes.

Each service sets its prefix and its defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import Field

from stratos.core.features import Feature
from stratos.engine.fake.runner import FakeConfig
from stratos.engine.settings import DiskTierConfig, RunnerConfig, SchedulerConfig
from stratos.engine.sizing.device import engine_process_for
from stratos.kv_transfer.settings import TransportConfig
from stratos.rpc.settings import ServiceSettings
from stratos.store.settings import ObjectStoreConfig
from stratos.worker.meters.settings import UsageConfig, WorkerObserveConfig

FAKE_STAGING_BLOCKS = 64
"""Blocks of host memory of the fake engine that a disk tier goes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffConfig:
    """When a prompt is handed off, and the deadlines of both ends."""

    local_prefill_max_tokens: Annotated[int, Ge(0)] = 16
    """An uncached tail up to this long is computed at the decode worker: one block costs less than a hand-off."""
    progress_timeout_s: Annotated[float, Gt(0)] = 1.0
    """A source that says nothing for this long is lost; it speaks every 250 ms."""
    stall_timeout_s: Annotated[float, Gt(0)] = 2.0
    """A source whose step counter stands still for this long, or for 4 of its slow steps, while it computes, hangs."""
    idle_timeout_s: Annotated[float, Gt(0)] = 5.0
    """A granted hand-off of which no token is computed and no frame sent for this long, or for 16 of the source's slow
    steps, is given up; the source is not avoided."""
    spill_wait_s: Annotated[float, Ge(0)] = 1.0
    """A hand-off that waits for at least this long at its source goes elsewhere where ``spill_ratio`` says so."""
    spill_ratio: Annotated[float, Gt(0)] = 4.0
    """It goes to the next source, or is computed here, when its wait is so many times what computing here would take,
    queue included; by the source's own measure of its tokens."""
    grant_wait_s: Annotated[float, Gt(0)] = 0.5
    """A job whose grant comes later gives its blocks back in the meantime and keeps its place: milliseconds when the
    receiver lives, whose adapters are on its disk by then."""
    frame_timeout_s: Annotated[float, Gt(0)] = 10.0
    """An announced frame must be complete within this time: one slot takes milliseconds on any network."""
    abort_timeout_s: Annotated[float, Gt(0)] = 1.0
    """Longest wait for AbortAck, and for the source to leave after Ack."""
    slot_wait_s: Annotated[float, Gt(0)] = 2.0
    """Longest wait for a staging slot; a leg that holds one gives it back within a transfer's time."""
    num_slots: Annotated[int, Ge(1)] = 2
    """Credits that a leg asks for: one frame on the wire while the one before it is scattered."""
    receiver_timeout_s: Annotated[float, Gt(0)] = 10.0
    """A source's longest wait for the receiver's Grant, Credit or Ack, which come within milliseconds when it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCacheConfig:
    """Where adapters are kept, and how much of them."""

    directory: Path = Path("/tmp/stratos-adapters")  # noqa: S108 - content is checked by digest
    """Checked adapters, one folder per digest; each worker of a host needs its own."""
    max_bytes: Annotated[int, Ge(0)] = 2 * 1024**3
    """Least recently used adapters beyond this are removed from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSourceConfig:
    """Where the model comes from, if not from a folder."""

    source: str = ""
    """`registry:NAME@DIGEST`: a published model of the object store, in place of ``RUNNER__MODEL_PATH``."""
    cache_directory: Path = Path("/tmp/stratos-models")  # noqa: S108 - content is checked by digest
    """Models of this node, which its workers share: a folder on a disk that outlives them saves the next fetch."""
    cache_bytes: Annotated[int, Ge(0)] = 0
    """Models there that are not in use are removed beyond this, the least recently used first; 0: as the disk fills."""
    patience_s: Annotated[float, Ge(0)] = 60.0
    """A start is given up when the object store has given nothing for so long; the next one goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProberConfig:
    """How a worker looks for damaged memory; for the engine on a CPU in exact mode."""

    interval_s: Annotated[float, Ge(0)] = 60.0
    """Known tokens are computed every so often, and another digest than before takes the worker out; 0 is off."""
    weight_bytes_per_s: Annotated[int, Ge(0)] = 16 * 1024 * 1024
    """Weights that are read again per second, beside the steps, to find any flipped bit of them; 0 is off."""
    least_pass_s: Annotated[float, Ge(0)] = 60.0
    """All weights are read at most once in this time."""
    leave_after_s: Annotated[float, Ge(0)] = 600.0
    """A worker that was taken out ends after this time, so that it is started again; 0: it stays until you end it."""


class WorkerSettings(ServiceSettings):
    """One worker: what it is, and the groups that its parts take."""

    worker_id: str = "worker-0"
    """Stable name within the deployment; shown in receipts and logs."""
    zone: str = ""
    """Where it runs, for the scorer and the filter of this name at the router: a zone, a rack, a host."""
    region: str = ""
    """Region around that, for the scorer and the filter of this name at the router."""
    pool: str = ""
    """Label that a plan's ``pools`` may name: such workers serve the plan first, and may keep KV for it."""
    is_spot: bool = False
    """It may vanish at any moment: routers give it requests of the lowest class alone, batches among them, and those
    first. Planner and HPAs do not count on it."""
    is_spare: bool = False
    """Load and verify the weights, and take no work until it is woken; see `stratos up --spares`."""
    engine: Literal["torch", "fake"] = "torch"
    """"fake" is arithmetic by hand: a platform without a model, and tests that see which worker computed what."""
    engine_process: Literal["auto", "thread", "process"] = "auto"
    """Where the step loop runs: a thread of this process, or a process of its own that shares no interpreter lock.
    "auto" is a thread on a CPU, whose steps give the lock away once, and a process on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the torch engine computes; cuda needs the extra stratosserve[gpu]."""
    orphan_ttl_s: float = Field(5.0, ge=0)
    """Requests of a broken session are freed after this long; a gateway reconnects within a second."""
    hand_back_after_s: float = Field(0.0, ge=0)
    """Seconds of a drain in which streams may end by themselves; then they go on at another worker, which fetches their
    KV from this one. 0 moves them at once; raise it where no other worker serves the model."""
    successor_wait_s: float = Field(5.0, ge=0)
    """A draining worker stays for so long at most until the KV of the streams that it handed back was fetched."""
    step_stall_timeout_s: float = Field(5.0, gt=0)
    """Not ready when it computes and its step counter stands still for this long (at least 4 of its slow steps)."""
    self_check_interval_s: float = Field(10.0, ge=0)
    """An engine that was idle for this long computes one token; not ready when that fails or takes longer than
    ``step_stall_timeout_s``. 0 turns it off."""

    disabled_features: frozenset[Feature] = frozenset()
    """Features that this worker does not offer, e.g. ["watermark"]: it refuses requests that need them."""

    scheduler: SchedulerConfig = SchedulerConfig()
    runner: RunnerConfig = RunnerConfig()
    model: ModelSourceConfig = ModelSourceConfig()
    fake: FakeConfig = FakeConfig()
    disk_tier: DiskTierConfig = DiskTierConfig()
    prober: ProberConfig = ProberConfig()
    handoff: HandoffConfig = HandoffConfig()
    transport: TransportConfig = TransportConfig()
    object_store: ObjectStoreConfig | None = None
    adapter_cache: AdapterCacheConfig = AdapterCacheConfig()
    usage: UsageConfig = UsageConfig()
    observe: WorkerObserveConfig = WorkerObserveConfig()

    @property
    def engine_runner(self) -> RunnerConfig:
        """``runner`` with the host memory that a disk tier goes through."""
        if not self.disk_tier.is_on or self.runner.host_pool_bytes:
            return self.runner
        return replace(self.runner, host_pool_bytes=self.disk_tier.staging_bytes)

    @property
    def engine_fake(self) -> FakeConfig:
        """``fake`` likewise."""
        if not self.disk_tier.is_on or self.fake.num_host_blocks:
            return self.fake
        return replace(self.fake, num_host_blocks=FAKE_STAGING_BLOCKS)

    @property
    def model_label(self) -> str:
        """Name of the model in metrics."""
        folder = self.fake.model_path if self.engine == "fake" else self.runner.model_path
        return self.observe.model_name or Path(folder or self.engine).name

    @property
    def device_label(self) -> str:
        """The device in metrics: the fake engine computes on none but the CPU."""
        return "cpu" if self.engine == "fake" else self.device

    @property
    def has_engine_process(self) -> bool:
        """The engine runs in a process of its own."""
        return (engine_process_for(self.device) if self.engine_process == "auto" else self.engine_process) == "process"

    @property
    def steps(self) -> SchedulerConfig:
        """``scheduler`` with what the device decides."""
        return self.scheduler.for_device(self.device)
