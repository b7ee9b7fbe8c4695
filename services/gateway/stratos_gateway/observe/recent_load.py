"""Load of this gateway by model, reported to routers: requests open now, and times of the last minute's answers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from stratos.common.clock import Clock
from stratos.core.gateway_load import NUM_TTFT_COUNTS, WINDOW_S, GatewayLoad, ttft_place
from stratos.core.ledger.pricing import Times
from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS

REPORT_S = 1.0
BACKLOG_KEPT_S = 15.0
"""How long a look at batches is told: a gateway that is cut off from them says no more what was."""
IDLE_REPORT_S = 3.0
"""How often 0 is told of a model that nothing is asked of: a scaler that hears nothing keeps what it has."""


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


@dataclass(slots=True)
class _Model:
    """One base model."""

    num_open: int = 0
    num_clients: int = 0
    """Open requests above the batch class."""
    client_at_s: float = float("-inf")
    """Time at which one of those was open last, where none is."""
    seconds: deque[_Second] = field(default_factory=deque)

    def second(self, now: float) -> _Second:
        self.forget(now)
        if not self.seconds or now - self.seconds[-1].begin_s >= 1.0:
            self.seconds.append(_Second(now))
        return self.seconds[-1]

    def client_age_s(self, now: float) -> float:
        """Since a request above the batch class was open; infinite where none was."""
        return 0.0 if self.num_clients else now - self.client_at_s

    def client_age_ms(self, now: float) -> int | None:
        age_s = self.client_age_s(now)
        return round(age_s * 1000) if age_s <= WINDOW_S else None

    def forget(self, now: float) -> None:
        while self.seconds and self.seconds[0].begin_s <= now - WINDOW_S:
            self.seconds.popleft()


def _nothing() -> None:
    """Nothing was begun."""


class RecentLoad:
    """Belongs to the event loop.

    Args:
        gateway: incarnation of this process.
        clock: monotonic.
        served: digests of the models that are reported also while they are idle, as they are then; batches belong to
            the first one.
    """

    def __init__(self, gateway: str, clock: Clock, served: Callable[[], Iterable[str]] = tuple) -> None:
        self._gateway = gateway
        self._clock = clock
        self._served = served
        self._idle_told_s = float("-inf")
        self._models: dict[str, _Model] = {}
        self._backlog: tuple[float, int, int] | None = None
        """When batches were looked at, monotonic, and what waited then."""

    def note_backlog(self, num_lines: int, num_due: int) -> None:
        """So many lines of batches wait, at whichever gateway, and so many of them are due within an hour."""
        self._backlog = self._clock.now(), num_lines, num_due

    def client_age_s(self) -> float:
        """Since a request above the batch class was open, of any model; infinite where none was in the last minute."""
        now = self._clock.now()
        return min((model.client_age_s(now) for model in self._models.values()), default=math.inf)

    def begin(self, model_digest: str, priority_class: int = DEFAULT_PRIORITY_CLASS) -> Callable[[], None]:
        """A request for tokens or vectors of a model is open until the result is called; without a digest none is."""
        if not model_digest:
            return _nothing
        model = self._models.setdefault(model_digest, _Model())
        is_client = priority_class < BATCH_CLASS
        model.num_open += 1
        model.num_clients += is_client
        return partial(self._end, model, is_client)

    def _end(self, model: _Model, is_client: bool) -> None:
        model.num_open -= 1
        if is_client:
            model.num_clients -= 1
            model.client_at_s = self._clock.now()
        model.second(self._clock.now())  # told until the window is over, so that its end is seen

    def note(self, model_digest: str, times: Times, kept: Mapping[str, bool]) -> None:
        """An answer has ended.

        Args:
            model_digest: of the model that answered.
            times: that were measured.
            kept: whether each promised time was kept; empty where the plan promises none.
        """
        second = self._models.setdefault(model_digest, _Model()).second(self._clock.now())
        if times.ttft_us is not None:
            second.first_tokens[ttft_place(times.ttft_us / 1e6)] += 1
        if kept:
            second.num_judged += 1
            second.num_violations += not all(kept.values())

    def now(self) -> list[GatewayLoad]:
        """The reports of this moment: of models with open requests or recent answers, and idle ones at times."""
        now = self._clock.now()
        for model in self._models.values():
            model.forget(now)
        self._models = {digest: m for digest, m in self._models.items() if m.num_open or m.seconds}
        return [*(self._load(digest, model) for digest, model in self._models.items()), *self._idle(now)]

    def _idle(self, now: float) -> list[GatewayLoad]:
        if now - self._idle_told_s < IDLE_REPORT_S:
            return []
        self._idle_told_s = now
        return [self._load(digest, _Model()) for digest in self._served() if digest not in self._models]

    async def run(self, listener: LoadListener) -> None:
        """Root task: report until cancelled."""
        while True:
            for load in self.now():
                await listener.report_load(load)
            await asyncio.sleep(REPORT_S)

    def _recent_backlog(self) -> tuple[int | None, int | None]:
        """Nothing is known of batches where the last look at them is too long ago, or there was none."""
        if self._backlog is None or self._clock.now() - self._backlog[0] > BACKLOG_KEPT_S:
            return None, None
        return self._backlog[1:]

    def _load(self, digest: str, model: _Model) -> GatewayLoad:
        counts = zip(*(second.first_tokens for second in model.seconds), strict=True)
        num_lines, num_due = self._recent_backlog() if digest in tuple(self._served())[:1] else (None, None)
        return GatewayLoad(
            gateway=self._gateway,
            model_digest=digest,
            num_open=model.num_open,
            num_judged=sum(second.num_judged for second in model.seconds),
            num_violations=sum(second.num_violations for second in model.seconds),
            first_tokens=tuple(map(sum, counts)),
            num_batch_lines=num_lines,
            num_batch_lines_due=num_due,
            client_age_ms=model.client_age_ms(self._clock.now()),
        )
