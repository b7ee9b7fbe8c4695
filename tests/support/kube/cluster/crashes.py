"""Processes of pods that end without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.node_pods import node_pods
from tests.support.kube.cluster.programs import KILL

NAMESPACE = "stratos-e2e-crashes"


@dataclass(frozen=True, slots=True)
class Crasher:
    """A pod in each node's process namespace."""

    pods: dict[str, ClientPod]

    def kill(self, pod: dict[str, Any]) -> None:
        """The service of the pod is gone at once."""
        killed = json.loads(self.pods[pod["spec"]["nodeName"]].python(KILL, pod["metadata"]["uid"]))
        assert killed, f"no process of {pod['metadata']['name']} was found"


@contextmanager
def crashing(image: str) -> Iterator[Crasher]:
    """In a namespace of its own, which allows what that needs."""
    container = {
        "name": "crasher", "image": image,
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"runAsUser": 0, "privileged": True},
    }  # fmt: skip
    with node_pods(NAMESPACE, container, {"hostPID": True}) as pods:
        yield Crasher(pods)
