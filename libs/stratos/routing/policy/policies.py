"""The policies of all pools: from names in the configuration to an order of workers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from stratos.core.placement import PlacementRequest, WorkerRole
from stratos.routing.policy.filters import FILTERS, narrow
from stratos.routing.policy.pickers import PICKERS
from stratos.routing.policy.prefix_index import PrefixIndex
from stratos.routing.policy.scorers import INDEXED_SCORERS, SCORERS, ScoringContext
from stratos.routing.policy.settings import NAMED, PolicyConfig, RoutingPoliciesConfig
from stratos.routing.worker_view import WorkerView

MAX_POOLS = 512
"""Pools with a state; models come from requests, so their number is bounded."""


class InvalidPolicy(ValueError):
    """The configuration names a policy, a scorer, a filter or a picker that there is not; the message names it."""


class Ranking(NamedTuple):
    """Result of a policy for some workers."""

    workers: list[WorkerView]
    """Workers to take, the first one first."""
    considered: Sequence[WorkerView]
    """Workers that the last one of them was chosen from."""
    scores: Sequence[float]
    """Scores of those that were considered."""


class PoolPolicy:
    """One policy at work in one pool."""

    def __init__(self, config: PolicyConfig) -> None:
        self._filters = [FILTERS[name] for name in config.filters]
        self._scorers = [(SCORERS[name], weight) for name, weight in config.scorers.items() if weight]
        self._picker = PICKERS[config.picker]()

    def rank(
        self, views: Sequence[WorkerView], context: ScoringContext, count: int, rng: Random, known: str = ""
    ) -> Ranking:
        """Up to ``count`` of ``views``, the one to take first; ``known`` goes before others that the filters keep."""
        left = list(narrow(views, self._filters, context)) if views else []
        scores = self._score(left, context)
        ranked: list[WorkerView] = []
        first = [index for index, view in enumerate(left) if view.ref.incarnation == known] if known else []
        while left and len(ranked) < count:
            index = first.pop() if first else self._picker.pick(left, scores, rng)
            ranked.append(left[index])
            if len(ranked) == count:
                break  # who was considered last stays whole
            left.pop(index)
            scores.pop(index)
        return Ranking(ranked, left, scores)

    def _score(self, views: Sequence[WorkerView], context: ScoringContext) -> list[float]:
        alike, different = 0.0, []
        for score, weight in self._scorers:
            found = score(views, context)
            if isinstance(found, list):
                different.append((found, weight))
            else:
                alike += weight * found
        if not different:
            return [alike] * len(views)
        (found, weight), *others = different
        total = [alike + weight * one for one in found]
        for found, weight in others:
            total = [one + weight * more for one, more in zip(total, found, strict=True)]
        return total


class Policies:
    """Chooses the policy of a request's pool and applies it.

    Args:
        config: names and numbers.
        index: of the workers' prefix caches; empty where they are not followed.

    Raises:
        InvalidPolicy: a name in it is unknown.
    """

    def __init__(self, config: RoutingPoliciesConfig, index: PrefixIndex | None = None) -> None:
        check_policies(config)
        self._config = config
        self.index = PrefixIndex(config.max_indexed_blocks) if index is None else index
        self._known = {**NAMED, **config.custom}
        self._by_pool: dict[tuple[WorkerRole, str], PoolPolicy] = {}

    def context(self, request: PlacementRequest) -> ScoringContext:
        """The request as ``rank`` needs it, with its matches in the workers' prefix caches."""
        matches = self.index.match(request.block_hashes)
        return ScoringContext(
            request=request,
            long_prompt_tokens=self._config.long_prompt_tokens,
            num_matched=matches.depths,
            num_below=matches.below,
            zone=request.zone,
            region=request.region,
        )

    def rank(
        self,
        views: Sequence[WorkerView],
        context: ScoringContext,
        role: WorkerRole,
        count: int,
        rng: Random,
        known: str = "",
    ) -> Ranking:
        """Up to ``count`` of the workers that may run the request of ``context`` as ``role``, the one to take first.

        Args:
            views: those workers.
            context: the request, and where workers should be.
            role: with the model it names the pool, and so the policy.
            count: of workers to take.
            rng: breaks ties.
            known: incarnation that is taken before others, if the policy's filters keep it.
        """
        return self._policy(role, context.request.model_digest).rank(views, context, count, rng, known)

    def name_of(self, role: WorkerRole, model_digest: str) -> str:
        """The policy of a pool."""
        pools = self._config.pools
        wanted = (f"{role}/{model_digest}", f"*/{model_digest}", role.value)
        return next((pools[pool] for pool in wanted if pool in pools), self._config.default)

    def uses_index(self, role: WorkerRole) -> bool:
        """Whether prefix caches of workers of this role are looked at."""
        pools = self._config.pools
        names = {pools[pool] for pool in pools if pool.partition("/")[0] in (role.value, "*")}
        if role.value not in pools:
            names.add(self._config.default)
        return any(INDEXED_SCORERS & self._known[name].scorers.keys() for name in names)

    def _policy(self, role: WorkerRole, model_digest: str) -> PoolPolicy:
        policy = self._by_pool.get((role, model_digest))
        if policy is None:
            if len(self._by_pool) >= MAX_POOLS:
                self._by_pool.clear()  # only turns are lost
            policy = self._by_pool[role, model_digest] = PoolPolicy(self._known[self.name_of(role, model_digest)])
        return policy


def check_policies(config: RoutingPoliciesConfig) -> None:
    """Refuse names that there are not.

    Raises:
        InvalidPolicy: has the name, its place, and the known names.
    """
    for name, policy in config.custom.items():
        if name in NAMED:
            raise InvalidPolicy(f"custom policy {name!r}: this name is taken; choose another one")
        for kind, known, given in (
            ("scorer", SCORERS, policy.scorers),
            ("filter", FILTERS, policy.filters),
            ("picker", PICKERS, (policy.picker,)),
        ):
            for wanted in given:
                _check_name(f"custom policy {name!r}: {kind}", wanted, known)
        if any(weight < 0 for weight in policy.scorers.values()):
            raise InvalidPolicy(f"custom policy {name!r}: weights must not be negative")
    policies = (*NAMED, *config.custom)
    _check_name("default policy", config.default, policies)
    for pool, wanted in config.pools.items():
        _check_pool(pool)
        _check_name(f"pool {pool!r}: policy", wanted, policies)


def _check_pool(pool: str) -> None:
    role, slash, digest = pool.partition("/")
    is_role = role in [known.value for known in WorkerRole]
    if not is_role and not (slash and role == "*"):
        raise InvalidPolicy(f'pool {pool!r} must begin with "decode" or "prefill", or with "*" before a model digest')
    if slash and not digest:
        raise InvalidPolicy(f"pool {pool!r}: the model digest is missing")


def _check_name(what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InvalidPolicy(f"{what} {name!r} is not known{hint}; there are: {', '.join(names)}")
