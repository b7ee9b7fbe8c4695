"""Pools that Deployments say of themselves, so that one that comes or goes restarts nothing.

The chart writes the bounds of a pool into an annotation of its Deployment.  One that cannot be read is left out, which
the log says: the others are scaled all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from stratos.planning.settings import PoolBounds, check_pools
from stratos_autoscaler.kubernetes.api import Object

POOL = "stratosserve.io/pool"
_BOUNDS = TypeAdapter(PoolBounds)
_log = logging.getLogger(__name__)


class NotedPools:
    """Belongs to the event loop.

    Args:
        own: pools that settings name; a Deployment that says the same model and role is left out.
    """

    def __init__(self, own: Sequence[PoolBounds]) -> None:
        self._own = tuple(own)
        self._said: dict[str, str] = {}
        """What was last said of each Deployment that is left out."""

    def now(self, deployments: Iterable[Object]) -> tuple[PoolBounds, ...]:
        """All pools, those of settings first."""
        found, problems = list(self._own), {}
        for item in sorted(deployments, key=lambda item: str(item["metadata"]["name"])):
            name, text = item["metadata"]["name"], (item["metadata"].get("annotations") or {}).get(POOL)
            if text is None:
                continue
            try:
                bounds = _BOUNDS.validate_json(text)
                if bounds.deployment != name:
                    raise ValueError(f"it is of Deployment {bounds.deployment!r}")
                check_pools([*found, bounds])
            except ValueError as error:
                problems[name] = _short(error)
            else:
                found.append(bounds)
        for name in problems.keys() - {n for n, problem in self._said.items() if problems.get(n) == problem}:
            _log.warning("the annotation %s of Deployment %s is left out: %s", POOL, name, problems[name])
        self._said = problems
        return tuple(found)


def _short(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())[:200]
    return str(error)[:200]
