"""The views of all known workers, by role and model: a decision looks at those alone that could run its request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile

from stratos.core.placement import PlacementRequest, WorkerRole
from stratos.routing.worker_view import WorkerView

Pool = Collection[WorkerView]


class FleetViews:
    """One view per worker process; belongs to one thread."""

    def __init__(self, views: Iterable[WorkerView] = ()) -> None:
        self._by_incarnation: dict[str, WorkerView] = {}
        self._pools: dict[tuple[WorkerRole, str], dict[str, WorkerView]] = {}
        self._changes: dict[tuple[WorkerRole, str], dict[str, int]] = {}
        """By pool, the change that made each view; the last change comes last."""
        self._last_removal = 0
        self.num_changes = 0
        for view in views:
            self.put(view)

    def __iter__(self) -> Iterator[WorkerView]:
        return iter(self._by_incarnation.values())

    def __len__(self) -> int:
        return len(self._by_incarnation)

    def get(self, incarnation: str) -> WorkerView | None:
        """The view of a process."""
        return self._by_incarnation.get(incarnation)

    def put(self, view: WorkerView) -> None:
        """Take in a new view of a process, in the place of the last one."""
        incarnation = view.ref.incarnation
        last = self._by_incarnation.get(incarnation)
        if last is not None and _pool_key(last) != _pool_key(view):
            self.remove(incarnation)
        self._by_incarnation[incarnation] = view
        self._pools.setdefault(_pool_key(view), {})[incarnation] = view
        self.num_changes += 1
        changes = self._changes.setdefault(_pool_key(view), {})
        changes.pop(incarnation, None)
        changes[incarnation] = self.num_changes

    def remove(self, incarnation: str) -> None:
        """A process is gone; unknown ones are ignored."""
        view = self._by_incarnation.pop(incarnation, None)
        if view is not None:
            key = _pool_key(view)
            del self._pools[key][incarnation]
            del self._changes[key][incarnation]
            if not self._pools[key]:
                del self._pools[key]
                del self._changes[key]
            self.num_changes += 1
            self._last_removal = self.num_changes

    def pool(self, role: WorkerRole, model_digest: str) -> Pool:
        """Workers of one role that serve one model, live or not."""
        return self._pools.get((role, model_digest), {}).values()

    def by_incarnation(self, role: WorkerRole, model_digest: str) -> Mapping[str, WorkerView]:
        """The same workers with the names of their processes."""
        return self._pools.get((role, model_digest), {})

    def changed(self, role: WorkerRole, model_digest: str, since: int) -> list[WorkerView] | None:
        """Workers of a pool whose views came after ``num_changes`` was ``since``; ``None`` where one has left since."""
        if self._last_removal > since:
            return None
        views, changes = self._by_incarnation, self._changes.get((role, model_digest), {})
        newest_first = takewhile(lambda change: change[1] > since, reversed(changes.items()))
        return [views[incarnation] for incarnation, _ in newest_first]

    def pool_of(self, request: PlacementRequest) -> Pool:
        """Workers that could run a request."""
        return self.pool(request.work.role, request.model_digest)

    def could_run(self, incarnation: str, request: PlacementRequest) -> bool:
        """The process is in the pool of a request."""
        return incarnation in self.by_incarnation(request.work.role, request.model_digest)

    def models(self, role: WorkerRole) -> list[str]:
        """Digests of the models that workers of one role serve."""
        return [model for of_role, model in self._pools if of_role is role]

    def num_of_role(self, role: WorkerRole) -> int:
        """Workers of one role, of all models."""
        return sum(len(pool) for (of_role, _), pool in self._pools.items() if of_role is role)


def _pool_key(view: WorkerView) -> tuple[WorkerRole, str]:
    return view.ref.role, view.status.identity.model_digest
