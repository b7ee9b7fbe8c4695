"""A Prometheus in the cluster that watches a namespace by the objects that the chart made, as an operator would."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from tests.support.kube.cluster.commands import Kubectl
from tests.support.kube.cluster.nodes import avoiding
from tests.support.kube.cluster.programs import DISCOVER
from tests.support.servers.prometheus import ask, fetch

NAME, PORT = "prometheus", 9090
PODS = "/found/pods.json"
FOUND = {"files": [PODS], "refresh_interval": "5s"}
"""Every pod of the namespace, with the labels of ``kubernetes_sd_configs: [{role: pod}]``."""
ANNOTATED = "annotations"
"""A job that finds pods by prometheus.io/scrape and keeps nothing but whether they answered."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The address of a Prometheus, from this machine."""

    url: str

    def firing(self, release: str) -> set[str]:
        """Alerts of a release (NAMESPACE/NAME), and those of none, that are raised now."""
        alerts = fetch(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        return {
            alert["labels"]["alertname"] for alert in alerts
            if alert["state"] == "firing" and alert["labels"].get("release", release) == release
        }  # fmt: skip

    def ask(self, query: str) -> list[dict[str, Any]]:
        return ask(self.url, query)

    def num_up(self, job: str) -> int:
        """Targets that answered, of a job or several (a regular expression)."""
        return len(self.ask(f'up{{job=~"{job}"}} == 1'))


def scrape_configs(kubectl: Kubectl) -> list[dict[str, Any]]:
    """A job for each endpoint of each PodMonitor of the namespace, and one by annotations."""
    jobs = [
        _job(monitor, number, endpoint)
        for monitor in kubectl.items("podmonitors.monitoring.coreos.com")
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]
    return [*jobs, _annotated()]


def _job(monitor: Mapping[str, Any], number: int, endpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What the Prometheus operator makes of an endpoint of a PodMonitor."""
    labels = monitor["spec"]["selector"]["matchLabels"]
    kept = [_keep(f"__meta_kubernetes_pod_label_{_underscored(name)}", value) for name, value in labels.items()]
    port = _keep("__meta_kubernetes_pod_container_port_name", endpoint["port"])
    return {
        "job_name": f"podmonitor/{monitor['metadata']['name']}/{number}",
        "metrics_path": endpoint["path"],
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "file_sd_configs": [FOUND],
        "relabel_configs": [*kept, port, _ended(), *map(_snake_cased, endpoint["relabelings"])],
    }


def _annotated() -> dict[str, Any]:
    """The job that is in use everywhere without an operator."""
    path = "__meta_kubernetes_pod_annotation_prometheus_io_path"
    address = ["__address__", "__meta_kubernetes_pod_annotation_prometheus_io_port"]
    return {
        "job_name": ANNOTATED,
        "scrape_interval": "10s",
        "file_sd_configs": [FOUND],
        "relabel_configs": [
            _keep("__meta_kubernetes_pod_annotation_prometheus_io_scrape", "true"),
            _ended(),
            {"source_labels": [path], "target_label": "__metrics_path__", "regex": "(.+)"},
            {"source_labels": address, "regex": r"([^:]+)(?::\d+)?;(\d+)", "replacement": "$1:$2",
             "target_label": "__address__"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "instance"},
        ],
        "metric_relabel_configs": [{"source_labels": ["__name__"], "regex": ".+", "action": "drop"}],
    }  # fmt: skip


def _keep(label: str, value: str) -> dict[str, Any]:
    return {"source_labels": [label], "regex": re.escape(value).replace(r"\-", "-"), "action": "keep"}


def _ended() -> dict[str, Any]:
    return {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"}


def _underscored(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _snake_cased(relabeling: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in relabeling.items()}


def rules(kubectl: Kubectl, sooner: Sequence[str]) -> dict[str, Any]:
    """The groups of the PrometheusRules of the namespace; each once, however many releases bring them.

    Args:
        kubectl: of the namespace.
        sooner: alerts that are raised after a minute, however long they would have to hold.
    """
    found = kubectl.items("prometheusrules.monitoring.coreos.com")
    groups = {group["name"]: group for item in found for group in item["spec"]["groups"]}
    for group in groups.values():
        for rule in group["rules"]:
            if rule.get("alert") in sooner:
                rule["for"] = "1m"
    return {"groups": list(groups.values())}


@contextmanager
def monitoring(kubectl: Kubectl, image: str, files: Mapping[str, Any], *, avoid: Sequence[str]) -> Iterator[Monitoring]:
    """A Prometheus in the namespace, on none of the nodes ``avoid``; ``files``: prometheus.yaml and what it names."""
    account = {"name": NAME, "namespace": kubectl.namespace}
    content = {name: yaml.safe_dump(value) for name, value in files.items()}
    subject = {"kind": "ServiceAccount", **account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    may = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    rbac = "rbac.authorization.k8s.io/v1"
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {"apiVersion": rbac, "kind": "Role", "metadata": account, "rules": may},
        {"apiVersion": rbac, "kind": "RoleBinding", "metadata": account, "subjects": [subject], "roleRef": role},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": account, "data": content},
        {"apiVersion": "v1", "kind": "Pod", "metadata": account, "spec": _spec(kubectl, image, avoid)},
    )
    kubectl("wait", f"pod/{NAME}", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
    with _forwarded(kubectl) as url:
        yield Monitoring(url)


def _spec(kubectl: Kubectl, image: str, avoid: Sequence[str]) -> dict[str, Any]:
    common = {
        "image": image, "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("data", "watch", "found")],
    }  # fmt: skip
    prometheus = {
        **common, "name": NAME,
        "args": ["--config.file=/watch/prometheus.yaml", "--storage.tsdb.path=/data", "--log.level=warn"],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 2},
    }  # fmt: skip
    discovery = {**common, "name": "discovery", "command": ["python", "-c", DISCOVER, kubectl.namespace, PODS]}
    return {
        "serviceAccountName": NAME, "priorityClassName": kubectl.priority_class,
        "containers": [prometheus, discovery], "affinity": avoiding(*avoid),
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "found", "emptyDir": {}},
                    {"name": "watch", "configMap": {"name": NAME}}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001,
                            "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip


@contextmanager
def _forwarded(kubectl: Kubectl) -> Iterator[str]:
    """Its address on this machine."""
    command = ["kubectl", "-n", kubectl.namespace, "port-forward", f"pod/{NAME}", f":{PORT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert found, f"kubectl port-forward said {line!r}"
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
