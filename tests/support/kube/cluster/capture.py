"""Every packet that the nodes see, taken by a pod in each node's network, and searched for runs of bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.node_pods import node_pods
from tests.support.kube.cluster.programs import CAPTURE, SEARCH

NAMESPACE = "stratos-e2e-capture"


@dataclass(frozen=True, slots=True)
class Capture:
    pods: tuple[ClientPod, ...]

    def search(self, needles: dict[str, list[bytes]]) -> dict[str, Any]:
        """bytes: captured so far; found: how many runs of each kind any node saw."""
        line = {name: [run.hex() for run in runs] for name, runs in needles.items()}
        answers = [json.loads(pod.python(SEARCH, line)) for pod in self.pods]
        found = {name: max(answer["found"][name] for answer in answers) for name in needles}
        return {"bytes": sum(answer["bytes"] for answer in answers), "found": found}


@contextmanager
def capturing(image: str) -> Iterator[Capture]:
    """From here on; the namespace allows what a capture needs."""
    container = {
        "name": "capture", "image": image, "command": ["python", "-c", CAPTURE],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_RAW", "NET_ADMIN"]}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    spec = {"hostNetwork": True, "volumes": [{"name": "tmp", "emptyDir": {}}]}
    with node_pods(NAMESPACE, container, spec) as pods:
        yield Capture(tuple(pods.values()))
