"""Why pods of a Model do not serve, from the statuses of pods and Deployments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.kubernetes.workloads import conditions_of
from stratos_autoscaler.model_resources.wanted.spec import StatusReason

MAX_MESSAGE = 400
_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CREATE = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_FETCH = "model"
"""Init container that brings the model into the pod."""
_ABSENT = ("not found", "no such", "there is no", "has no")


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason, and what was said of it."""

    reason: StatusReason
    message: str


def first_problem(deployments: Iterable[Object], pods: Iterable[Object]) -> Problem | None:
    """Find what keeps pods of a Model from serving: that of a pod tells more than that of its Deployment."""
    found = [problem for pod in sorted(pods, key=_name) if (problem := pod_problem(pod)) is not None]
    found += [problem for item in sorted(deployments, key=_name) for problem in _of_deployment(item)]
    return found[0] if found else None


def pod_problem(pod: Object) -> Problem | None:
    """That of one pod; ``None`` of one that is ready, leaves, or just starts."""
    status = pod.get("status") or {}
    conditions = conditions_of(pod)
    if "deletionTimestamp" in pod["metadata"] or (conditions.get("Ready") or {}).get("status") == "True":
        return None
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        message = str(scheduled.get("message", ""))
        is_claim = "persistentvolumeclaim" in message and "not found" in message
        return _problem(StatusReason.SOURCE_NOT_FOUND if is_claim else StatusReason.NO_ROOM, pod, message)
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((problem for state in states if (problem := _of_container(pod, state)) is not None), None)


def last_words(message: str) -> str:
    """The last line that says something, without the frame that logs as JSON have."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    try:
        entry = json.loads(lines[-1])
    except ValueError:
        return lines[-1][-MAX_MESSAGE:]
    if not isinstance(entry, dict):
        return lines[-1][-MAX_MESSAGE:]
    ends = [line for line in str(entry.get("exception") or "").splitlines() if line.strip()]
    return ": ".join(filter(None, (str(entry.get("message") or ""), *ends[-1:])))[:MAX_MESSAGE]


def _of_container(pod: Object, state: Object) -> Problem | None:
    waiting = (state.get("state") or {}).get("waiting") or {}
    reason, said = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in _PULL:
        return _problem(StatusReason.IMAGE_NOT_PULLED, pod, said or str(state.get("image", "")))
    if reason in _CREATE:
        return _problem(StatusReason.CONTAINER_NOT_STARTED, pod, said or reason)
    ended = (state.get("state") or {}).get("terminated") or (state.get("lastState") or {}).get("terminated") or {}
    if not ended.get("exitCode"):
        return None
    message = last_words(str(ended.get("message") or "")) or f"ended with {ended['exitCode']}"
    if ended.get("reason") == "OOMKilled":
        message = f"out of memory: {message}"
    if state["name"] != _FETCH:
        return _problem(StatusReason.CRASH_ON_LOAD, pod, message)
    is_absent = any(words in message.lower() for words in _ABSENT)
    return _problem(StatusReason.SOURCE_NOT_FOUND if is_absent else StatusReason.SOURCE_FAILED, pod, message)


def _of_deployment(found: Object) -> Iterator[Problem]:
    conditions = conditions_of(found)
    refused, progress = conditions.get("ReplicaFailure") or {}, conditions.get("Progressing") or {}
    if refused.get("status") == "True":
        yield _problem(StatusReason.PODS_REFUSED, found, str(refused.get("message", "")))
    if progress.get("reason") == "ProgressDeadlineExceeded":
        yield _problem(StatusReason.TOO_SLOW, found, str(progress.get("message", "")))


def _problem(reason: StatusReason, found: Object, message: str) -> Problem:
    return Problem(reason, f"{_name(found)}: {message}"[:MAX_MESSAGE])


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
