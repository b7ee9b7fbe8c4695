"""Marks of service: what routers that stand by learn of tenants from the placements of the active one.

A hand-off's id says where its tenant stands in the virtual time of the router that placed it.  A worker keeps the
highest mark of each tenant and class, so that a router that takes over, or is new, goes on where the one before
it was.
"""

from __future__ import annotations

from stratos.core.fleet import ServiceMark
from stratos.core.placement import router_of, service_tag_of

MAX_MARKS = 4096
"""As many tenants as a router counts; the ones whose latest request is the oldest go first."""
MarkKey = tuple[str, int]
"""Tenant and class."""


class ServiceMarks:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._marks: dict[MarkKey, tuple[str, ServiceMark]] = {}
        """With the router that made it; the latest ones are the last."""

    def note(self, tenant: str, handoff_id: str) -> MarkKey | None:
        """A request came; returns what has risen by it."""
        tag = service_tag_of(handoff_id)
        if tag is None:
            return None
        key = tenant, tag.priority_class
        old = self._marks.pop(key, None)
        if old is not None and old[1].counter >= tag.counter:  # a later placement was quicker on its way
            self._marks[key] = old
            return None
        mark = ServiceMark(tenant=tenant, priority_class=tag.priority_class, start=tag.start, counter=tag.counter)
        self._marks[key] = router_of(handoff_id), mark
        if len(self._marks) > MAX_MARKS:
            del self._marks[next(iter(self._marks))]
        return key

    def all_keys(self) -> set[MarkKey]:
        """Keys that a stream is told of at its beginning."""
        return set(self._marks)

    def of_others(self, keys: set[MarkKey], router: str) -> tuple[ServiceMark, ...]:
        """The marks of these, but for those that a router has made itself."""
        if not keys:
            return ()
        found = [self._marks[key] for key in keys if key in self._marks]
        return tuple(mark for maker, mark in found if maker != router)
