"""How many generation requests may be open, in this process and per tenant, and how they end with the process.

A full gateway takes a request of a higher class in the place of one of a lower class whose client has not heard
anything yet: the newest of the lowest class gives way.  A request also ends, at any time, once its tenant, its key or
its model is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from stratos.common.errors import ConcurrencyLimited, Draining, Overloaded, StratosError
from stratos.common.shed_reason import ShedReason
from stratos.core.tenant import Tenant
from stratos_gateway.access.contract import Gate
from stratos_gateway.access.task_end import TaskEnd
from stratos_gateway.metrics import GatewayMetrics

T = TypeVar("T")
End = Callable[[StratosError], None]
Refusal = Callable[[], StratosError | None]
"""Why a request may not go on, asked again whenever tenants, keys or blocks have changed; quick."""
_DISPLACED = "displaced from a full gateway by a request of a higher class; try again later"


def _leave_nothing() -> None:
    """It is in no list."""


def _not_begun() -> bool:
    """Its client has heard nothing."""
    return False


@dataclass(slots=True)
class Place(AbstractContextManager["Place"]):
    """Place of one open request, given back where the block ends."""

    priority_class: int
    leave: Callable[[], None] = _leave_nothing
    end: End | None = None
    has_begun: Callable[[], bool] = _not_begun
    is_displaced: bool = False
    refusals: list[Refusal] = field(default_factory=list)
    _looked: tuple[int, int] = (-1, 0)
    """Number of changes at the last look, and how many refusals had been asked by then."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""
        self.leave()

    @property
    def can_give_way(self) -> bool:
        """Its client has heard nothing, and it was not asked before."""
        return self.end is not None and not self.is_displaced and not self.has_begun()

    def end_with(self, error: StratosError) -> None:
        """Ask it to end."""
        assert self.end is not None, "only what runs can end"
        self.end(error)

    def end_if_open(self, error: StratosError) -> None:
        """Ask it to end, unless it has."""
        if self.end is not None:
            self.end(error)

    def refusal(self) -> StratosError | None:
        """The first reason why it may not go on."""
        return next((error for refusal in self.refusals if (error := refusal()) is not None), None)

    def refusal_since(self, num_changes: int) -> StratosError | None:
        """The same; what was asked since the last change is not asked again.

        Args:
            num_changes: of tenants, keys and blocks so far.
        """
        changes, num_asked = self._looked
        if changes == num_changes and num_asked == len(self.refusals):
            return None
        for refusal in self.refusals[num_asked if changes == num_changes else 0 :]:
            if (error := refusal()) is not None:
                return error  # the next one who looks is told the same
        self._looked = num_changes, len(self.refusals)
        return None


class _EndsBy(AbstractContextManager[None]):
    """Inside, a place ends by a call."""

    __slots__ = ("_admission", "_end", "_has_begun", "_outer", "_place")

    def __init__(self, admission: Admission, place: Place, end: End, has_begun: Callable[[], bool]) -> None:
        self._admission, self._place, self._end, self._has_begun = admission, place, end, has_begun

    def __enter__(self) -> None:
        place = self._place
        self._outer = place.end, place.has_begun
        place.end, place.has_begun = self._end, self._has_begun
        if (error := self._admission.refusal(place)) is not None:
            self._end(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.end, self._place.has_begun = self._outer


class _EndsTask(TaskEnd):
    """Inside, what the current task awaits ends with a place."""

    __slots__ = ("_admission", "_outer", "_place")

    def __init__(self, admission: Admission, place: Place) -> None:
        super().__init__()
        self._admission, self._place = admission, place

    def __enter__(self) -> Self:
        place = self._place
        if (error := self._admission.refusal(place)) is not None:
            raise error
        self._outer = place.end, place.has_begun
        place.end, place.has_begun = self, _not_begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.end, self._place.has_begun = self._outer
        super().__exit__(kind, error, trace)


class Admission:
    """Counts open requests; a place is given back on every way out of ``enter``.

    Args:
        max_open: of the process.
        max_open_per_tenant: of one tenant.
        metrics: shows the number of open requests.
        gate: before answers; ``None`` is always open.
    """

    def __init__(
        self, max_open: int, max_open_per_tenant: int, metrics: GatewayMetrics, gate: Gate | None = None
    ) -> None:
        self._max_open = max_open
        self._max_open_per_tenant = max_open_per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._metrics = metrics
        metrics.open.set_function(lambda: self.num_open)  # at each scrape: no request takes its lock
        self._gate = gate
        self.num_open = 0
        self.is_draining = False
        self._open: dict[int, Place] = {}
        self._by_class: Counter[int] = Counter()
        self._entered = itertools.count()
        self._num_changes = 0
        """Of tenants, keys and blocks."""
        self._end: StratosError | None = None

    def check(self, tenant: Tenant) -> None:
        """Refuse a request before its body is read.

        Raises:
            Draining, Overloaded: not here, not now.
            ConcurrencyLimited: the tenant has too many requests open.
        """
        if self.is_draining:
            raise Draining("this gateway is leaving; try again")
        self._check_tenant(tenant)
        if self.num_open >= self._max_open and not self._able_to_give_way(tenant.priority_class):
            raise self._full()

    def enter(self, tenant: Tenant) -> Place:
        """Take a place, which is held where a block of it ends; a drain that began while the body was read refuses
        nothing.

        Raises:
            Overloaded: not here, not now.
            ConcurrencyLimited: the tenant has too many requests open.
        """
        tenant_id = tenant.id
        self._check_tenant(tenant)
        if self.num_open >= self._max_open and not self._displace(tenant.priority_class):
            raise self._full()
        self.num_open += 1
        self._by_tenant[tenant_id] += 1
        number = next(self._entered)
        place = self._open[number] = Place(tenant.priority_class, partial(self._leave, number, tenant_id))
        self._by_class[place.priority_class] += 1
        return place

    def _leave(self, number: int, tenant_id: str) -> None:
        place = self._open.pop(number)
        place.refusals.clear()  # they know the request, which knows its place
        self._by_class[place.priority_class] -= 1
        self.num_open -= 1
        self._by_tenant[tenant_id] -= 1
        if not self._by_tenant[tenant_id]:
            del self._by_tenant[tenant_id]

    def refusal(self, place: Place) -> StratosError | None:
        """Why a place may not be used any more."""
        return self._end or place.refusal_since(self._num_changes)

    def _check_tenant(self, tenant: Tenant) -> None:
        if self._by_tenant[tenant.id] >= self._max_open_per_tenant:
            raise ConcurrencyLimited(f"{self._max_open_per_tenant} requests of this tenant are open, its limit")

    def _full(self) -> Overloaded:
        return Overloaded(f"the gateway has {self.num_open} requests open, its limit", reason=ShedReason.QUEUE_FULL)

    def _able_to_give_way(self, priority_class: int) -> list[tuple[int, int]]:
        """Class and number of the places below a class that could be free at once."""
        if not any(num for below, num in self._by_class.items() if below > priority_class):
            return []  # a refusal among equals looks at no place
        return [
            (place.priority_class, number)
            for number, place in self._open.items()
            if place.priority_class > priority_class and place.can_give_way
        ]

    def _displace(self, priority_class: int) -> bool:
        """Ask the newest request of the lowest class below this one to end; false where there is none."""
        able = self._able_to_give_way(priority_class)
        if not able:
            return False
        victim = self._open[max(able)[1]]
        victim.is_displaced = True
        victim.end_with(Overloaded(_DISPLACED, reason=ShedReason.LOAD_SHED))
        return True

    def ends_by(self, place: Place, end: End, has_begun: Callable[[], bool]) -> AbstractContextManager[None]:
        """``end`` is called if the process, or its place, cannot wait for what runs inside; quick, and must not raise.

        Args:
            place: of the request.
            end: ends it with an error.
            has_begun: whether its client has heard something.
        """
        return _EndsBy(self, place, end, has_begun)

    def ends_task(self, place: Place) -> AbstractContextManager[object]:
        """End what the current task awaits inside together with its place: preparation, checks, waits.

        Raises:
            StratosError: what ended the place.
        """
        return _EndsTask(self, place)

    async def until_open(self, place: Place) -> None:
        """Wait while this process may send no answer.

        Raises:
            StratosError: what ended the place: others have its tenant's slots.
        """
        if self._gate is not None and self._gate.is_shut:
            with self.ends_task(place):
                await self._gate.opened()

    async def run_in(self, place: Place, work: Awaitable[T]) -> T:
        """Await what has no end of its own to call; it is cancelled where its place ends.

        Raises:
            StratosError: what ended the place.
        """
        task, reasons = asyncio.ensure_future(work), list[StratosError]()

        def end(error: StratosError) -> None:
            reasons.append(error)
            task.cancel()

        with self.ends_by(place, end, _not_begun):
            try:
                return await task
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                if reasons and not (caller is not None and caller.cancelling()):
                    raise reasons[0] from None
                raise

    def recheck(self) -> None:
        """Tenants, keys or blocks have changed: end the requests that may not go on."""
        self._num_changes += 1
        for place in list(self._open.values()):
            if place.end is not None and (error := place.refusal()) is not None:
                place.refusals.clear()  # it is told once
                self._metrics.ended_by_refusal.inc()
                place.end(error)

    def end_all(self) -> None:
        """The drain's time is over: what is open, or begins now, tells its client so."""
        if self._end is None:
            self._end = Draining("this gateway leaves before the answer is complete; try again")
            ends = [place.end for place in self._open.values() if place.end is not None]
            self._metrics.ended_by_drain.inc(len(ends))
            for end in ends:
                end(self._end)
