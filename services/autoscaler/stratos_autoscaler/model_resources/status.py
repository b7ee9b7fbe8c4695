"""The status of a Model: conditions Ready, Loading and Failed, its pools, and one line for ``kubectl get models``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.core.placement import WorkerRole
from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.kubernetes.noted_pools import POOL
from stratos_autoscaler.kubernetes.workloads import MODEL_DIGEST, role_of
from stratos_autoscaler.model_resources.observed import ObservedModel
from stratos_autoscaler.model_resources.problems import MAX_MESSAGE, Problem
from stratos_autoscaler.model_resources.records import Recorded
from stratos_autoscaler.model_resources.wanted.spec import StatusReason

SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Findings of a plan: how a Model stands beside its pods."""

    recorded: Recorded
    problem: Problem | None = None
    served_name: str = ""
    digest: str = ""
    """Digest of the source, where it says one."""
    is_recording: bool = False
    leaving: StatusReason | None = None
    """How far a Model is that was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolCount:
    deployment: str
    mode: str
    replicas: int
    ready: int
    updated: int

    @property
    def is_whole(self) -> bool:
        return self.ready >= self.replicas and self.updated >= self.replicas

    def shown(self) -> Object:
        return {
            "deployment": self.deployment,
            "mode": self.mode,
            "replicas": self.replicas,
            "ready": self.ready,
            "updated": self.updated,
            "shown": f"{self.ready}/{self.replicas}",
        }


def status_of(model: Object, story: Story, observed: ObservedModel, stamp: str) -> Object:
    """The whole status; ``None`` stands for what it has not.

    Args:
        model: the object, whose status has the times of earlier changes.
        story: what the plan found.
        observed: what there is.
        stamp: time of a condition that changes now.
    """
    old: Mapping[str, Any] = model.get("status") or {}
    pools = _pools(observed)
    conditions = _conditions(story, list(pools.values()))
    is_ready, is_failed = conditions["Ready"][0], conditions["Failed"][0]
    if story.leaving is not None:
        state, shown = "Leaving", "Failed" if is_failed else "Loading"
    elif is_ready:
        state, shown = "Ready", "Failed" if is_failed else "Loading" if conditions["Loading"][0] else "Ready"
    else:
        state = shown = "Failed" if is_failed else "Loading"
    digest = story.digest or next(iter(_noted(observed)), "")
    generation = model["metadata"].get("generation", 0)
    return {
        "observedGeneration": generation,
        "state": state,
        "reason": conditions[shown][1],
        "message": conditions[shown][2],
        "servedName": story.served_name or old.get("servedName"),
        "revision": digest[:SHOWN_DIGITS] or None,
        "digest": digest or None,
        "pools": {role.value: pools[role].shown() if role in pools else None for role in WorkerRole},
        "record": {"digest": story.recorded.digest, "count": story.recorded.count} if story.recorded.count else None,
        "conditions": [
            _condition(kind, found, old.get("conditions") or (), generation, stamp)
            for kind, found in conditions.items()
        ],
    }


def is_same(status: Object, live: Mapping[str, Any]) -> bool:
    """Whether the live status says it already."""
    return bool(_without_none(status) == _without_none(dict(live)))


def _conditions(story: Story, pools: Sequence[_PoolCount]) -> dict[str, tuple[bool, str, str]]:
    """Whether each holds, with its reason and message."""
    counts = ", ".join(f"{pool.deployment} {pool.ready}/{pool.replicas}" for pool in pools)
    wanted = [pool for pool in pools if pool.replicas]
    is_told, serves = bool(story.recorded.count), all(pool.ready for pool in wanted)
    if story.leaving is not None:
        ready = (False, story.leaving, "it was deleted")
        loading = (False, story.leaving, counts)
    else:
        is_ready = is_told and serves and bool(pools)
        is_loading = story.is_recording or not is_ready or not all(pool.is_whole for pool in wanted)
        why = StatusReason.RECORDING if story.is_recording and serves and pools else StatusReason.STARTING
        at_rest = StatusReason.SERVING if wanted else StatusReason.ASLEEP
        is_refused = story.problem is not None and not pools
        ready = (
            is_ready,
            at_rest if is_ready else story.problem.reason if is_refused and story.problem else why,
            counts,
        )
        loading = (is_loading and not is_refused, why if is_loading and not is_refused else StatusReason.NONE, counts)
    problem = story.problem
    failed = (True, problem.reason, problem.message) if problem else (False, StatusReason.NONE, "")
    found = {"Ready": ready, "Loading": loading, "Failed": failed}
    return {kind: (holds, reason.value, message[:MAX_MESSAGE]) for kind, (holds, reason, message) in found.items()}


def _condition(
    kind: str, found: tuple[bool, str, str], old: Sequence[Mapping[str, Any]], generation: int, stamp: str
) -> Object:
    holds, reason, message = found
    before = next((entry for entry in old if entry.get("type") == kind), {})
    value = "True" if holds else "False"
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == value else stamp,
    }


def _pools(observed: ObservedModel) -> dict[WorkerRole, _PoolCount]:
    found = {}
    for item in observed.of("Deployment"):
        status, metadata = item.get("status") or {}, item["metadata"]
        if (role := role_of(item)) is None:
            continue
        is_seen = int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0)
        found[role] = _PoolCount(
            deployment=metadata["name"],
            mode=_mode((metadata.get("annotations") or {}).get(POOL, "")),
            replicas=int(item["spec"].get("replicas", 1)),
            ready=int(status.get("readyReplicas") or 0),
            updated=int(status.get("updatedReplicas") or 0) if is_seen else 0,
        )
    return {role: found[role] for role in WorkerRole if role in found}


def _mode(pool: str) -> str:
    """Who sizes a pool, by its annotation; "" where another hand made that unreadable."""
    try:
        return str(json.loads(pool)["mode"])
    except (ValueError, TypeError, KeyError):
        return ""


def _noted(observed: ObservedModel) -> list[str]:
    """Digests that workers were seen to serve."""
    notes = [found["metadata"].get("annotations") or {} for found in observed.of("Deployment")]
    return sorted(note[MODEL_DIGEST] for note in notes if note.get(MODEL_DIGEST))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        made = {key: _without_none(inner) for key, inner in value.items() if inner is not None}
        return {key: inner for key, inner in made.items() if inner != {}}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value
