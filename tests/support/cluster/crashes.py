"""Processes of pods that end without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.cluster.client import ClientPod
from tests.support.cluster.commands import Kubectl
from tests.support.cluster.programs import KILL

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
    cluster, kubectl = Kubectl(), Kubectl(NAMESPACE)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    try:
        nodes = [node["metadata"]["name"] for node in cluster.items("nodes")]
        kubectl.apply(*(_pod(node, image) for node in nodes))
        for node in nodes:
            kubectl("wait", f"pod/{node}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
        yield Crasher({node: ClientPod(kubectl, node) for node in nodes})
    finally:
        cluster("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s", timeout_s=130)


def _pod(node: str, image: str) -> dict[str, Any]:
    container = {
        "name": "crasher", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"runAsUser": 0, "privileged": True},
    }  # fmt: skip
    spec = {
        "nodeName": node, "hostPID": True, "containers": [container], "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node, "namespace": NAMESPACE}, "spec": spec}
