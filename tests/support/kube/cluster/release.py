"""A namespace as strict as a careful cluster has it, and an installed chart in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.cluster.commands import CommandFailed, Kubectl, run, wait_until
from tests.support.paths import ROOT

CHART = "deploy/helm/stratosserve"
METRICS_API = "v1beta1.external.metrics.k8s.io"
NEVER_COUNTED = ("events", "endpoints", "endpointslices.discovery.k8s.io", "pods.metrics.k8s.io")

LIMITS: dict[str, Any] = {
    "type": "Container", "min": {"cpu": "10m", "memory": "16Mi"}, "max": {"cpu": "4", "memory": "4Gi"},
    "maxLimitRequestRatio": {"cpu": "20"},
}  # fmt: skip
"""Of a LimitRange as platform teams have them; containers of the default values keep within."""


@contextmanager
def namespace(name: str, *, quota: Mapping[str, str] | None = None) -> Iterator[Kubectl]:
    """A namespace under the Pod Security level "restricted"; with ``quota`` also a ResourceQuota and a LimitRange.

    Its deletion has to finish. The tests' own pods have a class that stands above the chart's, which goes with it.
    """
    cluster, kubectl = Kubectl(), Kubectl(name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": kubectl.priority_class},
         "value": 1_000_000, "preemptionPolicy": "Never"},
    )  # fmt: skip
    if quota is not None:
        kubectl.apply(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota", "namespace": name},
             "spec": {"hard": dict(quota)}},
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits", "namespace": name},
             "spec": {"limits": [LIMITS]}},
        )  # fmt: skip
    try:
        with logs_of_failure(kubectl):
            yield kubectl
    finally:
        for left in json.loads(run(["helm", "list", "--namespace", name, "-o", "json"])):  # after a failure
            run(["helm", "uninstall", left["name"], "--namespace", name, "--wait", "--timeout", "5m"], timeout_s=330)
        cluster("delete", "priorityclass", kubectl.priority_class)
        cluster("delete", "namespace", name, "--wait=true", "--timeout=180s", timeout_s=200)


@contextmanager
def logs_of_failure(kubectl: Kubectl) -> Iterator[None]:
    """What the pods of a namespace said until something failed is in build/e2e/NAMESPACE."""
    try:
        yield
    except BaseException:
        folder = ROOT / "build" / "e2e" / kubectl.namespace
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "objects.txt").write_text(_output(kubectl, "describe", "pods") + _output(kubectl, "get", "events"))
        for pod in kubectl.items("pods"):
            name = pod["metadata"]["name"]
            said = _output(kubectl, "logs", name, "--all-containers", "--prefix")
            ended = _output(kubectl, "logs", name, "--all-containers", "--prefix", "--previous")
            (folder / f"{name}.log").write_text(f"{ended}\n{said}")
        raise


def _output(kubectl: Kubectl, *argv: str) -> str:
    try:
        return kubectl(*argv)
    except CommandFailed as error:
        return f"{error}"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of the chart by name."""

    name: str
    kubectl: Kubectl

    def helm(self, verb: str, *argv: str, timeout_s: float = 900.0) -> str:
        return run(["helm", verb, self.name, *argv, "--namespace", self.kubectl.namespace], timeout_s=timeout_s)

    def values(self) -> dict[str, Any]:
        return dict(json.loads(self.helm("get", "values", "--all", "-o", "json")))

    @property
    def selector(self) -> str:
        return f"app.kubernetes.io/instance={self.name}"

    def pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.kubectl.items("pods", self.selector) if pod["metadata"].get("ownerReferences")]

    def unready(self) -> list[str]:
        """Pods that neither serve nor have ended well."""
        return [
            f"{pod['metadata']['name']}: {pod['status']['phase']}"
            for pod in self.pods()
            if pod["status"]["phase"] != "Succeeded" and not _is_ready(pod)
        ]

    def restarts(self) -> dict[str, int]:
        """Pod -> restarts of its containers, where there were any."""
        counts = {
            pod["metadata"]["name"]: sum(
                state["restartCount"]
                for kind in ("containerStatuses", "initContainerStatuses")
                for state in pod["status"].get(kind, ())
            )
            for pod in self.pods()
        }
        return {name: count for name, count in counts.items() if count}

    def api_key(self) -> str:
        (secret,) = [item for item in self.kubectl.items("secrets", self.selector) if "api-key" in item.get("data", {})]
        return base64.b64decode(secret["data"]["api-key"]).decode()

    def remains(self) -> list[str]:
        """What the namespace still holds of the release, of every kind that there is."""
        kinds = run(["kubectl", "api-resources", "--namespaced", "--verbs=list", "-o", "name"]).split()
        found = []
        for kind in kinds:
            if kind not in NEVER_COUNTED:
                found += [f"{kind}/{item['metadata']['name']}" for item in self.kubectl.items(kind, self.selector)]
        return sorted(found)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


def metrics_api_is_available(kubectl: Kubectl) -> bool:
    """The API server reaches the autoscaler's metrics."""
    found = json.loads(kubectl("get", "apiservice", METRICS_API, "-o", "json"))
    conditions = {entry["type"]: entry["status"] for entry in found.get("status", {}).get("conditions", ())}
    return conditions.get("Available") == "True"


def wait_gone(release: Release, timeout_s: float = 120.0) -> None:
    """Pods end after ``helm uninstall``; what is left then stays.

    Raises:
        AssertionError: with what is left.
    """
    try:
        wait_until("nothing is left", lambda: not release.remains(), timeout_s)
    except AssertionError:
        raise CommandFailed(f"helm uninstall left {release.remains()}") from None
