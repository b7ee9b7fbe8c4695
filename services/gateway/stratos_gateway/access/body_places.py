"""How many bodies may be on their way in, in this process and per tenant.

They have no places among the requests: a client that sends slowly holds nothing that another one's request needs.  When
all places are taken, a body of a higher class gets that of the newest one of the lowest class.  Within a class the
tenant that holds the most gives way, so that none of them fills all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from stratos.common.errors import ConcurrencyLimited, Overloaded, StratosError
from stratos.common.shed_reason import ShedReason
from stratos.core.tenant import Tenant
from stratos_gateway.access.task_end import TaskEnd

_DISPLACED = "displaced from a full gateway while its body was read; try again later"


@dataclass(frozen=True, slots=True)
class _Body:
    tenant_id: str
    priority_class: int
    end: Callable[[StratosError], None]


class BodyPlaces:
    """Belongs to the event loop.

    Args:
        max_open: of the process.
        max_open_per_tenant: of one tenant.
        show_open: takes how many are taken.
    """

    def __init__(self, max_open: int, max_open_per_tenant: int, show_open: Callable[[int], None]) -> None:
        self._max_open = max_open
        self._max_open_per_tenant = max_open_per_tenant
        self._show_open = show_open
        self._by_tenant: Counter[str] = Counter()
        self._open: dict[int, _Body] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def enter(self, tenant: Tenant) -> Iterator[None]:
        """Hold a place while the current task reads a body.

        Raises:
            Overloaded: there is none, or another body got this one.
            ConcurrencyLimited: the tenant holds too many.
        """
        with TaskEnd() as end:
            give_back = self.hold(tenant, end)
            try:
                yield
            finally:
                give_back()

    def hold(self, tenant: Tenant, end: Callable[[StratosError], None]) -> Callable[[], None]:
        """Take a place; returns what gives it back, however often it is called.

        Args:
            tenant: whose body it is.
            end: called once another body gets the place.

        Raises:
            Overloaded, ConcurrencyLimited: as ``enter``.
        """
        if self._by_tenant[tenant.id] >= self._max_open_per_tenant:
            text = f"{self._max_open_per_tenant} bodies of this tenant are on their way, its limit"
            raise ConcurrencyLimited(text)
        if len(self._open) >= self._max_open and not self._displace(tenant):
            text = f"{self._max_open} bodies are on their way into the gateway, its limit"
            raise Overloaded(text, reason=ShedReason.QUEUE_FULL)
        number = next(self._numbers)
        self._open[number] = _Body(tenant.id, tenant.priority_class, end)
        self._count(tenant.id, 1)
        return partial(self._release, number)

    def end_all(self, error: StratosError) -> None:
        """Wait for none of them any more."""
        for number, body in list(self._open.items()):
            self._release(number)
            body.end(error)

    def _displace(self, tenant: Tenant) -> bool:
        """Take the place of another body; false where all have as good a right to theirs."""
        own = self._by_tenant[tenant.id]
        able = [
            (body.priority_class, self._by_tenant[body.tenant_id], number)
            for number, body in self._open.items()
            if body.priority_class > tenant.priority_class
            or (body.priority_class == tenant.priority_class and self._by_tenant[body.tenant_id] > own + 1)
        ]
        if not able:
            return False
        number = max(able)[2]
        end = self._open[number].end
        self._release(number)
        end(Overloaded(_DISPLACED, reason=ShedReason.LOAD_SHED))
        return True

    def _release(self, number: int) -> None:
        """Give a place back at once: one that was taken away is free before its task has heard of it."""
        body = self._open.pop(number, None)
        if body is not None:
            self._count(body.tenant_id, -1)

    def _count(self, tenant_id: str, change: int) -> None:
        self._by_tenant[tenant_id] += change
        if not self._by_tenant[tenant_id]:
            del self._by_tenant[tenant_id]
        self._show_open(len(self._open))
