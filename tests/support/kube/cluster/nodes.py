"""Nodes that are drained, lost and cut off."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.support.kube.cluster.commands import Kubectl, run, wait_until
from tests.support.kube.cluster.release import Release
from tests.support.kube.cluster.settings import ClusterSettings


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Which node a test may drain and which it may lose; the others keep the load and the cluster itself."""

    drained: str
    lost: str

    @classmethod
    def of_cluster(cls) -> NodePlan:
        """The last two by name; the first one is where a cluster keeps its own pods."""
        names = sorted(node["metadata"]["name"] for node in Kubectl().items("nodes"))
        assert len(names) >= 3, "needs three nodes"
        return cls(drained=names[-2], lost=names[-1])


def avoiding(*nodes: str) -> dict[str, object]:
    """An affinity that leaves these nodes out."""
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}
    terms = [{"matchExpressions": [expression]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def components_on(release: Release, node: str) -> list[str]:
    """Of the pods that run there."""
    return sorted(
        pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in release.pods()
        if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running"
    )  # fmt: skip


def drain(node: str) -> None:
    """Evict what is there, within the disruption budgets."""
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=300s")
    Kubectl()("drain", node, *flags, timeout_s=330)


def uncordon(node: str) -> None:
    """Pods may go there again."""
    Kubectl()("uncordon", node)


def bring(release: Release, node: str, *components: str) -> list[str]:
    """Components there, those that were named among them, on however many nodes the others are."""
    for component in components:
        _bring_one(release, component, node)
    there = components_on(release, node)
    assert set(components) <= set(there), there
    return there


def _bring_one(release: Release, component: str, node: str) -> None:
    """A pod of a component runs there, in place of one elsewhere if need be: what was drained does not come back."""
    if component in components_on(release, node):
        return
    chosen = f"{release.selector},app.kubernetes.io/component={component}"
    names = sorted(pod["metadata"]["name"] for pod in release.kubectl.items("pods", chosen))
    others = [found["metadata"]["name"] for found in Kubectl().items("nodes") if found["metadata"]["name"] != node]
    try:
        for other in others:
            Kubectl()("cordon", other)
        release.kubectl("delete", "pod", names[0], "--wait=true", timeout_s=180)
        is_there = f"a {component} serves on {node}"
        wait_until(is_there, lambda: component in components_on(release, node) and not release.unready(), 300)
    finally:
        for other in others:
            uncordon(other)


def disturb(cluster: ClusterSettings, verb: str, node: str) -> None:
    """kill, revive, cut or join a node."""
    run([*cluster.node, verb, node], timeout_s=180)


def is_ready(node: str) -> bool:
    """As the API server has it."""
    status = json.loads(Kubectl()("get", "node", node, "-o", "json"))["status"]
    return any(found["type"] == "Ready" and found["status"] == "True" for found in status["conditions"])


def wait_ready(release: Release, node: str) -> None:
    """The node is back, and every pod of the release serves."""
    wait_until(f"{node} is ready", lambda: is_ready(node), 180)
    wait_until("all pods are ready", lambda: not release.unready(), 300)
