"""The end-to-end tests bring a pod to a node that was drained before; here kubectl is a table."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.support.kube.cluster import commands, nodes
from tests.support.kube.cluster.commands import Kubectl
from tests.support.kube.cluster.release import Release


class Table:
    """Nodes, and on which of them each pod runs; a deleted pod comes back on the first node that takes pods."""

    def __init__(self, nodes_of_pods: dict[str, str]) -> None:
        self.nodes, self.pods, self.cordoned = ["n1", "n2", "n3"], nodes_of_pods, set[str]()

    def run(self, command: Sequence[str], *, stdin: str | None = None, timeout_s: float = 0.0) -> str:
        verb, kind_or_name, *rest = [part for part in command[1:] if part not in ("-n", "ns")]
        if verb == "get":
            items = self._nodes() if kind_or_name == "nodes" else self._pods(rest)
            return json.dumps({"items": items})
        if verb == "delete":
            self.pods[rest[0]] = next(node for node in self.nodes if node not in self.cordoned)
        else:
            {"cordon": self.cordoned.add, "uncordon": self.cordoned.discard}[verb](kind_or_name)
        return ""

    def _nodes(self) -> list[dict[str, object]]:
        return [{"metadata": {"name": name}} for name in self.nodes]

    def _pods(self, flags: Sequence[str]) -> list[dict[str, object]]:
        wanted = flags[1].partition("component=")[2]  # of "-l", SELECTOR
        return [
            {"metadata": {"name": name, "ownerReferences": [1],
                          "labels": {"app.kubernetes.io/component": name.partition("_")[0]}},
             "spec": {"nodeName": node},
             "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
            for name, node in self.pods.items() if not wanted or name.partition("_")[0] == wanted
        ]  # fmt: skip


def test_a_pod_is_brought_to_a_node_and_the_others_take_pods_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table({"gateway_0": "n1", "gateway_1": "n1", "worker_0": "n2"})
    monkeypatch.setattr(commands, "run", table.run)
    there = nodes.bring(Release("demo", Kubectl("ns")), "n2", "gateway", "worker")
    assert there == ["gateway", "worker"] == nodes.bring(Release("demo", Kubectl("ns")), "n2", "gateway")
    assert table.pods == {"gateway_0": "n2", "gateway_1": "n1", "worker_0": "n2"}
    assert not table.cordoned
