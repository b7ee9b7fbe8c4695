"""Why pods of a Model do not serve, and how long one that leaves waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import DependencyDown
from stratos_autoscaler.model_resources.drains import IDLE_S, Drains
from stratos_autoscaler.model_resources.observed import ObservedModel
from stratos_autoscaler.model_resources.problems import first_problem, last_words, pod_problem
from stratos_autoscaler.model_resources.wanted.spec import StatusReason

LONGEST_S = 600.0


def pod(*, conditions: dict[str, Any] | None = None, leaving: bool = False, **states: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [conditions] if conditions else []}
    for part, state in states.items():
        status[part] = [state]
    metadata = {"name": "p"} | ({"deletionTimestamp": "now"} if leaving else {})
    return {"metadata": metadata, "status": status}


def waiting(reason: str, message: str = "", name: str = "worker") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def ended(message: str, name: str = "worker", code: int = 1, reason: str = "Error") -> dict[str, Any]:
    last = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    return {"name": name, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}


def unscheduled(message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


LOGGED = '{"message": "the worker failed", "exception": "Traceback\\n  x\\nInvalidCheckpoint: no such tensor"}\n'


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (pod(conditions=unscheduled("0/3 nodes: Insufficient nvidia.com/gpu")), StatusReason.NO_ROOM, "nvidia.com/gpu"),
        (
            pod(conditions=unscheduled('persistentvolumeclaim "disk" not found')),
            StatusReason.SOURCE_NOT_FOUND,
            '"disk" not found',
        ),
        (
            pod(containerStatuses=waiting("ImagePullBackOff", "back-off x:1")),
            StatusReason.IMAGE_NOT_PULLED,
            "back-off x:1",
        ),
        (pod(initContainerStatuses=waiting("ErrImagePull", "no x:1")), StatusReason.IMAGE_NOT_PULLED, "no x:1"),
        (
            pod(containerStatuses=waiting("CreateContainerConfigError", 'secret "s" not found')),
            StatusReason.CONTAINER_NOT_STARTED,
            'secret "s"',
        ),
        (
            pod(containerStatuses=ended(f"first\n{LOGGED}")),
            StatusReason.CRASH_ON_LOAD,
            "InvalidCheckpoint: no such tensor",
        ),
        (pod(containerStatuses=ended("x", reason="OOMKilled", code=137)), StatusReason.CRASH_ON_LOAD, "out of memory"),
        (
            pod(initContainerStatuses=ended("Error: models/x in the object store has no config.json", "model")),
            StatusReason.SOURCE_NOT_FOUND,
            "has no config.json",
        ),
        (
            pod(initContainerStatuses=ended("Error: digests differ", "model")),
            StatusReason.SOURCE_FAILED,
            "digests differ",
        ),
    ],
)
def test_a_pod_says_why_it_does_not_serve(found: dict[str, Any], reason: StatusReason, message: str) -> None:
    problem = pod_problem(found)
    assert problem is not None
    assert problem.reason is reason
    assert message in problem.message


@pytest.mark.parametrize(
    "found",
    [
        pod(),
        pod(containerStatuses=waiting("ContainerCreating")),
        pod(containerStatuses={"name": "worker", "state": {"running": {}}}),
        pod(containerStatuses=ended("x"), conditions={"type": "Ready", "status": "True"}),
        pod(containerStatuses=ended("x"), leaving=True),
        pod(initContainerStatuses={"name": "model", "state": {"terminated": {"exitCode": 0}}}),
    ],
)
def test_a_pod_that_starts_serves_or_leaves_has_no_problem(found: dict[str, Any]) -> None:
    assert pod_problem(found) is None


def test_a_deployment_speaks_where_no_pod_does() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    slow = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "x"}
    found = {"metadata": {"name": "d"}, "status": {"conditions": [slow, refused]}}
    problem = first_problem([found], [])
    assert problem is not None
    assert (problem.reason, problem.message) == (StatusReason.PODS_REFUSED, "d: exceeded quota")
    crashed = first_problem([found], [pod(containerStatuses=ended("boom"))])
    assert crashed is not None
    assert crashed.reason is StatusReason.CRASH_ON_LOAD
    assert first_problem([{"metadata": {"name": "d"}}], []) is None


@pytest.mark.parametrize("text", ["", " \n\n", "x" * 5000, "[1]", json.dumps({"message": "m" * 5000}), "{"])
def test_last_words_are_bounded_whatever_a_container_says(text: str) -> None:
    assert len(last_words(text)) <= 400


async def test_a_model_leaves_once_it_was_idle_for_a_while() -> None:
    clock, counts = FakeClock(), [5, 0, None, 0, 0]

    async def count(_names: object, digest: str) -> int | None:
        assert digest == "d"
        return counts.pop(0)

    drains = Drains(count, LONGEST_S, clock)
    seen = []
    while counts:
        looked = await drains.look("u", ObservedModel(), "d")
        seen.append(looked.num_busy)
        clock.advance(IDLE_S)
    assert seen == [5, None, None, None, 0], "an answer that is missing begins the wait again"


async def test_routers_that_are_away_do_not_hold_a_model_for_ever() -> None:
    clock = FakeClock()

    async def count(_names: object, _digest: str) -> int | None:
        raise DependencyDown("no router")

    drains = Drains(count, LONGEST_S, clock)
    assert (await drains.look("u", ObservedModel(), "")).is_patient
    clock.advance(LONGEST_S)
    looked = await drains.look("u", ObservedModel(), "")
    assert (looked.num_busy, looked.is_patient) == (None, False)
    drains.keep([])
    assert (await drains.look("u", ObservedModel(), "")).is_patient, "another Model of that name begins its own wait"
