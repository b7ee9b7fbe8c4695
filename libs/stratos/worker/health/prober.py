"""Whether an engine computes what it computed at its start: known tokens now and then, and its weights read again.

One changed bit convicts: the engine promises the same bits, so damaged memory or a broken core is left.  An answer that
does not come convicts no one: an engine that is full, slow or ended is for others to judge (``SelfCheck``,
``StepWatch``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stratos.common.clock import Clock
from stratos.common.errors import InvalidCheckpoint, StratosError, WorkerLost
from stratos.core.files.known_digests import read_known_digest
from stratos.engine.contract.runner import RunnerInfo
from stratos.worker.engine_client.base import EngineClient
from stratos.worker.metrics import WorkerMetrics
from stratos.worker.settings import ProberConfig

READ_INTERVAL_S = 1.0
_log = logging.getLogger(__name__)


def expected_digest(info: RunnerInfo) -> bytes | None:
    """The digest that the model's folder names, where it has a file that can be read."""
    try:
        return read_known_digest(info.model_path, info.identity)
    except InvalidCheckpoint as error:
        _log.warning("known tokens are compared with this worker's first ones alone: %s", error.message)
        return None


class Prober:
    """Belongs to the event loop; ``reason`` may be read from any thread.

    Args:
        engine: a started one, whose ``info.can_probe``.
        clock: of its intervals.
        config: how often, how much.
        expected: digest of the known tokens, where one is known; else the first one counts.
        metrics: of the worker.
        on_conviction: called once, with the reason.
        on_sound: called with the time at which known tokens were begun that came out right.
        turn: held during a look; nothing looks while something else holds it.
    """

    def __init__(
        self,
        engine: EngineClient,
        clock: Clock,
        config: ProberConfig,
        expected: bytes | None,
        metrics: WorkerMetrics,
        on_conviction: Callable[[str], None],
        on_sound: Callable[[float], None] = lambda _: None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self._engine, self._clock, self._config = engine, clock, config
        self._expected, self._metrics = expected, metrics
        self._on_conviction, self._on_sound, self._turn = on_conviction, on_sound, turn or asyncio.Lock()
        self._probed_s: float | None = None
        self._num_passes, self._pass_began_s = 0, clock.now()
        self._num_ahead_bytes = 0
        self._convicted_s = 0.0
        self.reason = ""
        """Why the engine is not to be trusted; "" while nothing was found."""
        metrics.convicted.set(0)

    async def run(self) -> None:
        """Root task: look until cancelled."""
        while True:
            await asyncio.sleep(READ_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Read on in the weights, and compute the known tokens where it is time.

        Raises:
            WorkerLost: the conviction is so long ago that the process is to end.
        """
        async with self._turn:
            await self._look()

    async def look_again(self) -> None:
        """Compute the known tokens now: what the engine computes with was loaded again."""
        self._probed_s = None
        await self.look()

    async def _look(self) -> None:
        if self.reason:
            self._check_stay()
            return
        try:
            if self._config.weight_bytes_per_s and self._clock.now() >= self._pass_began_s:
                await self._read_weights()
            if self._config.interval_s and not self.reason and self._is_due():
                await self._probe()
        except StratosError as error:  # it has stopped, which others see
            _log.info("the engine was not probed: %s", error.message)
        except Exception:  # what cannot look finds nothing; that takes no sound worker down
            self._probed_s = self._clock.now()
            self._pass_began_s = self._probed_s + self._config.least_pass_s
            self._metrics.probes.labels("failed").inc()
            _log.exception("the engine could not be probed")

    def _check_stay(self) -> None:
        leave_after_s = self._config.leave_after_s
        if leave_after_s and self._clock.now() - self._convicted_s >= leave_after_s:
            raise WorkerLost(f"this worker was out for {leave_after_s:.0f} s and ends: {self.reason}")

    def _is_due(self) -> bool:
        return self._probed_s is None or self._clock.now() - self._probed_s >= self._config.interval_s

    async def _probe(self) -> None:
        began_s, digest = self._clock.now(), await self._engine.probe()
        self._probed_s = self._clock.now()
        if self._expected is None:
            self._expected = digest
        is_sound = digest == self._expected
        self._metrics.probes.labels("sound" if is_sound else "wrong").inc()
        if is_sound:
            self._on_sound(began_s)
        else:
            self._convict(
                f"known tokens give {digest.hex()} here and not {self._expected.hex()}: "
                "weights, KV pages or the processor are damaged"
            )

    async def _read_weights(self) -> None:
        max_bytes = round(self._config.weight_bytes_per_s * READ_INTERVAL_S)
        self._num_ahead_bytes = max(0, self._num_ahead_bytes - max_bytes)
        if self._num_ahead_bytes:  # the last piece was larger than an interval's worth
            return
        check = await self._engine.check_weights(max_bytes)
        self._num_ahead_bytes = check.num_bytes
        self._metrics.weight_bytes_checked.inc(check.num_bytes)
        if check.num_passes > self._num_passes:
            self._num_passes = check.num_passes
            self._pass_began_s = max(self._pass_began_s + self._config.least_pass_s, self._clock.now())
        if check.damaged:
            self._convict(f"weights have changed in memory: {', '.join(check.damaged)}")

    def _convict(self, reason: str) -> None:
        if self.reason:  # by the look of a start that took longer than the first interval
            return
        self.reason, self._convicted_s = reason, self._clock.now()
        self._metrics.convicted.set(1)
        _log.error("this worker is out: %s", reason)
        self._on_conviction(reason)
