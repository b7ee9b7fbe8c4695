"""A decode worker that computes its prompts itself: the real engine over a ``SimRunner``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stratos.common.clock import FakeClock
from stratos.core.cache_changes import CacheChanges
from stratos.core.fleet import WorkerStatus
from stratos.core.placement import WorkerRef, WorkerRole
from stratos.core.requests.records import EngineRequest
from stratos.engine.contract.results import StepResult
from stratos.engine.core import EngineCore
from stratos.engine.settings import SchedulerConfig
from stratos.sim.runner import SimRunner, StepCosts
from stratos.sim.timeline import Timeline

REPORT_INTERVAL_S = 0.05
"""Changes within this time are reported together, as a worker's status stream does."""
IDLE_POLL_S = 0.02
"""An engine in which nothing could run looks again after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Size and speed of every worker."""

    num_blocks: int = 4096
    block_size: int = 16
    scheduler: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(max_num_seqs=32))
    costs: StepCosts = field(default_factory=StepCosts)


class SimWorker:
    """One worker.

    Args:
        name: also of its incarnation.
        config: size and speed.
        timeline: the fleet's clock.
        on_result: called with every step's outcome, when the step is over.
        on_report: called with its status and with what its prefix cache stored and removed since the report before.
    """

    def __init__(
        self,
        name: str,
        config: WorkerConfig,
        timeline: Timeline,
        on_result: Callable[[SimWorker, StepResult], None],
        on_report: Callable[[WorkerStatus, CacheChanges], None],
    ) -> None:
        self.ref = WorkerRef(worker_id=name, incarnation=name, address=name, role=WorkerRole.DECODE)
        self._config, self._timeline = config, timeline
        self._on_result, self._on_report = on_result, on_report
        self._clock = FakeClock(start=0.0)
        runner = SimRunner(config.num_blocks, config.block_size, config.costs, self._clock)
        self.engine = EngineCore(runner, config.scheduler, self._clock)
        self._is_stepping = self._is_report_due = False
        self._last_report_s = -REPORT_INTERVAL_S
        self._last_change: int | None = None

    @property
    def num_seqs(self) -> int:
        """Sequences that run or wait."""
        status = self.engine.status()
        return status.num_running + status.num_waiting

    def submit(self, request: EngineRequest) -> None:
        """A request arrives. Raises like ``EngineCore.add``."""
        self._catch_up()
        self.engine.add(request)
        self._wake()

    def report_status(self) -> None:
        """Report the status and the changes now."""
        self._is_report_due, self._last_report_s = False, self._timeline.now()
        changes = self.engine.cache_changes(self._last_change)
        self._last_change = changes.last
        self._on_report(self._status(), changes)

    def _catch_up(self) -> None:
        self._clock.advance(max(0.0, self._timeline.now() - self._clock.now()))

    def _wake(self) -> None:
        if not self._is_stepping and self.engine.has_work:
            self._is_stepping = True
            self._timeline.at(self._timeline.now(), self._step)

    def _step(self) -> None:
        self._catch_up()
        result = self.engine.step()
        end_s = self._clock.now() + (IDLE_POLL_S if result.is_idle else 0.0)
        self._timeline.at(end_s, lambda: self._end(result))

    def _end(self, result: StepResult) -> None:
        self._is_stepping = False
        self._on_result(self, result)
        if not self._is_report_due:
            self._is_report_due = True
            self._timeline.at(self._last_report_s + REPORT_INTERVAL_S, self.report_status)
        self._wake()

    def _status(self) -> WorkerStatus:
        status, info = self.engine.status(), self.engine.info
        return WorkerStatus(
            ref=self.ref,
            engine=status.load,
            identity=info.identity,
            block_size=info.geometry.block_size,
            max_num_seqs=self._config.scheduler.max_num_seqs,
        )
