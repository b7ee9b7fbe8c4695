"""Which digest the model of a pool has.

Routers know digests, a chart knows names.  Where a deployment has one model there is nothing to tell apart; of several
each name's digest is learned from the first worker that serves it, and kept by the backend for when none does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratos.core.fleet import Fleet
from stratos.planning.settings import PoolBounds, PoolKey
from stratos_autoscaler.backends.base import BackendWorker


class ModelDigests:
    """Digests by name.

    Args:
        pools: of the deployment.
    """

    def __init__(self, pools: Sequence[PoolBounds]) -> None:
        self._is_one = len({(pool.model_digest, pool.model_name) for pool in pools}) <= 1
        self._known = {pool.model_name: pool.model_digest for pool in pools if pool.model_digest}

    def learn(self, fleet: Fleet, workers: Sequence[BackendWorker], kept: Mapping[str, str]) -> dict[str, str]:
        """Take over what workers show and what the backend has kept; returns what the backend should keep."""
        for name, digest in kept.items():
            self._known.setdefault(name, digest)
        names = {worker.worker_id: worker.model_name for worker in workers if worker.model_name}
        for worker in fleet.workers:
            model = names.get(worker.ref.worker_id)
            if model and worker.status is not None and worker.is_live:
                self._known[model] = worker.status.identity.model_digest
        return {name: digest for name, digest in self._known.items() if name and kept.get(name) != digest}

    def key(self, pool: PoolBounds) -> PoolKey | None:
        """The pool with its digest; ``None`` while that is not known."""
        if self._is_one or pool.model_digest:
            return pool.key
        digest = self._known.get(pool.model_name)
        return None if digest is None else replace(pool.key, model_digest=digest)
