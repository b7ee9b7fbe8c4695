"""Which digest the model of a pool has.

Routers know digests, a chart knows names.  Each name's digest is learned from the first worker that serves it, and kept
by the backend for when none does.  Where a deployment has one model, everything counts as its own until then; after
that models which an operator has added beside it do not.  While it sleeps these are what live workers of others serve.

While one revision of a model replaces another, its workers show two digests: both are the pool's.

A model that sleeps may be given other files.  Its kept digest is *doubted* then, and requests for an unknown
model are taken for it: it wakes, and its worker shows what it serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from stratos.core.fleet import Fleet
from stratos.planning.settings import PoolBounds, PoolKey
from stratos_autoscaler.backends.base import BackendWorker, NotedDigest


class ModelDigests:
    """Digests by name.

    Args:
        pools: of the deployment.
    """

    def __init__(self, pools: Sequence[PoolBounds]) -> None:
        self._known: dict[str, str] = {}
        self._others: dict[str, frozenset[str]] = {}
        """Further digests that live workers show, by name."""
        self.follow(pools)

    def follow(self, pools: Sequence[PoolBounds]) -> None:
        """These are the pools from now on; what is known of models that stay is kept."""
        names = {pool.model_name for pool in pools}
        self._is_one = len({(pool.model_digest, pool.model_name) for pool in pools}) <= 1
        self._known = {name: digest for name, digest in self._known.items() if name in names}
        self._known |= {pool.model_name: pool.model_digest for pool in pools if pool.model_digest}

    def learn(self, fleet: Fleet, workers: Sequence[BackendWorker], kept: Mapping[str, NotedDigest]) -> dict[str, str]:
        """Take over what workers show and what the backend has kept; returns what the backend should keep."""
        for name, noted in kept.items():
            self._known.setdefault(name, noted.digest)
        names = {worker.worker_id: worker.model_name for worker in workers if worker.model_name}
        shown: dict[str, set[str]] = {}
        for worker in fleet.workers:
            model = names.get(worker.ref.worker_id)
            if model and worker.status is not None and worker.is_live:
                shown.setdefault(model, set()).add(worker.status.identity.model_digest)
        self._known |= {name: _newest(digests, kept.get(name)) for name, digests in shown.items()}
        self._others = {name: frozenset(digests - {self._known[name]}) for name, digests in shown.items()}
        elsewhere = {
            worker.status.identity.model_digest
            for worker in fleet.workers
            if worker.status is not None and worker.is_live and worker.ref.worker_id not in names
        }
        doubted = [name for name, noted in kept.items() if noted.is_doubted and name not in shown]
        self._guess(fleet, doubted, elsewhere)
        if self._is_one and not shown:  # its files may have changed without a sign, and what nothing serves is for it
            asked = {q.model_digest for q in fleet.queues} | {load.model_digest for load in fleet.gateways}
            self._others = dict.fromkeys(self._known, frozenset(asked - elsewhere))
        sure = {name: NotedDigest(digest) for name, digest in self._known.items() if name in shown or name not in kept}
        return {name: noted.digest for name, noted in sure.items() if name and kept.get(name) != noted}

    def _guess(self, fleet: Fleet, doubted: Sequence[str], elsewhere: Set[str]) -> None:
        """Requests of an unknown digest are for a model whose own is doubted; of several, for one after the other."""
        asked = {queue.model_digest for queue in fleet.queues if queue.num_requests}
        unknown = sorted(asked - set(self._known.values()) - elsewhere)
        for name, digest in zip(sorted(doubted), unknown, strict=False):
            self._known[name] = digest

    def key(self, pool: PoolBounds) -> PoolKey | None:
        """The pool with its digest; ``None`` while that is not known and there are several models."""
        digest = self._known.get(pool.model_name)
        if pool.model_digest or (self._is_one and not (pool.model_name and digest)):
            return pool.key
        others = self._others.get(pool.model_name, frozenset())
        return None if digest is None else replace(pool.key, model_digest=digest, other_digests=others)


def _newest(shown: set[str], noted: NotedDigest | None) -> str:
    """The noted one of several, unless its workers start from something else by now: then the other one."""
    if noted is None or noted.digest not in shown:
        return min(shown)
    return min(shown - {noted.digest}, default=noted.digest) if noted.is_doubted else noted.digest
