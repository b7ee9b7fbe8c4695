"""A pod that sends requests: what it calls goes through the Service, as it does for an application of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.cluster.commands import Kubectl
from tests.support.kube.cluster.nodes import avoiding
from tests.support.kube.cluster.programs import METRIC, STREAM
from tests.support.kube.cluster.release import Release


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer of server-sent events."""

    status: int
    events: list[str]
    first_s: float
    whole_s: float

    @property
    def text(self) -> str:
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for chunk in chunks
            for choice in chunk["choices"]
        )


@dataclass(frozen=True, slots=True)
class ClientPod:
    kubectl: Kubectl
    name: str

    def python(self, program: str, line: Any = None, timeout_s: float = 120.0) -> str:
        """Output of a program in the pod, which reads ``line`` as JSON from its input."""
        argv = ("exec", "-i", self.name, "--", "python", "-c", program)
        return self.kubectl(*argv, stdin=json.dumps(line) + "\n", timeout_s=timeout_s)

    def stream(self, url: str, key: str, body: dict[str, Any]) -> Streamed:
        return Streamed(**json.loads(self.python(STREAM, [url, key, body | {"stream": True}])))


@contextmanager
def client_pod(kubectl: Kubectl, image: str, name: str = "client", *, avoid: Sequence[str] = ()) -> Iterator[ClientPod]:
    """A pod with Python and httpx that fits into a restricted namespace, on none of the nodes ``avoid``."""
    container = {
        "name": "client", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": kubectl.namespace},
         "spec": {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}], "securityContext": security,
                  "affinity": avoiding(*avoid) if avoid else {}, "priorityClassName": kubectl.priority_class,
                  "automountServiceAccountToken": False, "enableServiceLinks": False,
                  "terminationGracePeriodSeconds": 0}}
    )  # fmt: skip
    try:
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
        yield ClientPod(kubectl, name)
    finally:
        kubectl("delete", "pod", name, "--wait=true", "--ignore-not-found")


def kv_bytes(release: Release) -> float:
    """KV that decode workers received from other pods.

    Raises:
        AssertionError: none; no prompt went through the hand-off.
    """
    chosen = f"{release.selector},app.kubernetes.io/component=decode-worker"
    pods = [pod["metadata"]["name"] for pod in release.kubectl.items("pods", chosen)]
    read = [ClientPod(release.kubectl, pod).python(METRIC, "stratos_kv_transfer_bytes_total") for pod in pods]
    total = sum(float(text) for text in read)
    assert total > 0, "no prompt went through the hand-off"
    return total
