"""Load of this gateway, reported to routers: requests open now, and times of the last minute's answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.gateway_load import NUM_TTFT_COUNTS, WINDOW_S, GatewayLoad, ttft_place
from stratos.core.ledger.pricing import Times

REPORT_S = 1.0


class LoadListener(Protocol):
    """``stratos_gateway.routers.router_set.RouterSet`` is one."""

    async def report_load(self, load: GatewayLoad) -> None:
        """Tell every router that answers."""


@dataclass(slots=True)
class _Second:
    begin_s: float
    first_tokens: list[int] = field(default_factory=lambda: [0] * NUM_TTFT_COUNTS)
    num_judged: int = 0
    num_violations: int = 0


class RecentLoad:
    """Belongs to the event loop.

    Args:
        gateway: incarnation of this process.
        model_digest: of the model that it serves.
        num_open: requests that are open now.
        clock: monotonic.
    """

    def __init__(self, gateway: str, model_digest: str, num_open: Callable[[], int], clock: Clock) -> None:
        self._gateway = gateway
        self._model_digest = model_digest
        self._num_open = num_open
        self._clock = clock
        self._seconds: deque[_Second] = deque()

    def note(self, times: Times, kept: Mapping[str, bool]) -> None:
        """An answer has ended.

        Args:
            times: that were measured.
            kept: whether each promised time was kept; empty where the plan promises none.
        """
        second = self._second()
        if times.ttft_us is not None:
            second.first_tokens[ttft_place(times.ttft_us / 1e6)] += 1
        if kept:
            second.num_judged += 1
            second.num_violations += not all(kept.values())

    def now(self) -> GatewayLoad:
        """The report of this moment."""
        self._second()
        counts = zip(*(second.first_tokens for second in self._seconds), strict=True)
        return GatewayLoad(
            gateway=self._gateway,
            model_digest=self._model_digest,
            num_open=self._num_open(),
            num_judged=sum(second.num_judged for second in self._seconds),
            num_violations=sum(second.num_violations for second in self._seconds),
            first_tokens=tuple(map(sum, counts)),
        )

    async def run(self, listener: LoadListener) -> None:
        """Root task: report until cancelled."""
        while True:
            await listener.report_load(self.now())
            await asyncio.sleep(REPORT_S)

    def _second(self) -> _Second:
        now = self._clock.now()
        while self._seconds and self._seconds[0].begin_s <= now - WINDOW_S:
            self._seconds.popleft()
        if not self._seconds or now - self._seconds[-1].begin_s >= 1.0:
            self._seconds.append(_Second(now))
        return self._seconds[-1]
