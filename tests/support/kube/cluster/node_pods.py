"""A pod on every node, in a namespace that allows what the pods of a release may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.kube.cluster.client import ClientPod
from tests.support.kube.cluster.commands import Kubectl


@contextmanager
def node_pods(namespace: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[dict[str, ClientPod]]:
    """By name of the node, which each pod has too; they and the namespace end with the context.

    Args:
        namespace: made for them.
        container: name, image, command and what it may.
        spec: what else the pods ask for.
    """
    cluster, kubectl = Kubectl(), Kubectl(namespace)
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    try:
        nodes = [node["metadata"]["name"] for node in cluster.items("nodes")]
        kubectl.apply(*(_pod(namespace, node, container, spec) for node in nodes))
        for node in nodes:
            kubectl("wait", f"pod/{node}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
        yield {node: ClientPod(kubectl, node) for node in nodes}
    finally:
        cluster("delete", "namespace", namespace, "--wait=true", "--timeout=120s", timeout_s=130)


def _pod(namespace: str, node: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    common = {
        "nodeName": node, "containers": [{"imagePullPolicy": "IfNotPresent", **container}],
        "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node, "namespace": namespace},
        "spec": {**common, **spec},
    }  # fmt: skip
