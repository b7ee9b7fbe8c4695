"""Jobs of a Model: one records it, once for what it says, and one takes its records away at its end.

A job has the name of what it is to do and of how many were done before, so that a source that comes back after another
one is recorded again, and so is newer.  No two jobs of a Model are there at a time: an older one that still tries would
record the older source last.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.kubernetes.workloads import conditions_of
from stratos_autoscaler.model_resources.observed import ObservedModel
from stratos_autoscaler.model_resources.problems import Problem, pod_problem
from stratos_autoscaler.model_resources.steps import Apply, Delete, Step
from stratos_autoscaler.model_resources.wanted.filling import digest_of, object_name
from stratos_autoscaler.model_resources.wanted.spec import StatusReason


class JobStage(enum.Enum):
    """How far a job is."""

    DONE = enum.auto()
    RUNNING = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Jobs that ended well, as the status says them."""

    digest: str = ""
    """Digest of the last one."""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTurn:
    """How a job stands, what to write, and what is in its way."""

    state: JobStage
    steps: tuple[Step, ...] = ()
    problem: Problem | None = None


def recorded(status: Mapping[str, Any]) -> Recorded:
    """From the status of a Model."""
    said = status.get("record") or {}
    return Recorded(digest=str(said.get("digest") or ""), count=int(said.get("count") or 0))


def job_turn(job: Object, end: str, head: str, salt: int, observed: ObservedModel, failed: StatusReason) -> JobTurn:
    """Find the writes for one job to be done.

    Args:
        job: the object, whose name is made here.
        end: of its name, before the digest.
        head: of names of objects.
        salt: makes another job of an equal one.
        observed: what there is of the Model.
        failed: what it is called when it does not get done.
    """
    name = object_name(head, f"{end}-{digest_of([job['spec'], salt])[:10]}")
    others = [found for found in observed.of("Job") if found["metadata"]["name"] != name]
    if others:
        return JobTurn(state=JobStage.RUNNING, steps=tuple(delete_of("Job", found) for found in others))
    found = observed.objects.get(("Job", name))
    if found is None:
        made = {**job, "metadata": {**job["metadata"], "name": name}}
        return JobTurn(state=JobStage.RUNNING, steps=(Apply(made),))
    conditions = conditions_of(found)
    if (conditions.get("Complete") or {}).get("status") == "True":
        return JobTurn(state=JobStage.DONE)
    problem = next((p for pod in observed.pods_of(name) if (p := pod_problem(pod)) is not None), None)
    if problem is not None and problem.reason in (StatusReason.CRASH_ON_LOAD, StatusReason.SOURCE_FAILED):
        problem = Problem(failed, problem.message)
    ended = conditions.get("Failed") or {}
    if ended.get("status") == "True":
        message = f"job {name}: {ended.get('message', '')}; delete it to have it run again"
        return JobTurn(state=JobStage.FAILED, problem=problem or Problem(failed, message))
    return JobTurn(state=JobStage.RUNNING, problem=problem)


def delete_of(kind: str, found: Object) -> Delete:
    """Take one away with its pods: a job's before it, so that none acts when it is gone."""
    metadata = found["metadata"]
    return Delete(kind, metadata["name"], str(metadata.get("uid", "")), is_foreground=kind == "Job")
