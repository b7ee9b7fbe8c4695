"""A Redis and an S3 server that are no part of a release, and the Secrets that `production.values.yaml` asks for."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.kube.cluster.commands import Kubectl, run
from tests.support.kube.cluster.nodes import avoiding
from tests.support.kube.cluster.programs import S3
from tests.support.kube.cluster.release import Release
from tests.support.kube.cluster.settings import ClusterSettings

REDIS, OBJECTS = "stores-redis", "stores-s3"
IMAGE, BUCKET = "e2e-s3", "stratos"
KEYS = ("key-pepper", "platform-key", "api-key")


def provide_own_stores(release: Release, cluster: ClusterSettings, *, avoid: Sequence[str]) -> None:
    """Both serve, on none of the nodes ``avoid``; they end with the namespace."""
    kubectl, password = release.kubectl, secrets.token_hex(16)
    redis = ["redis-server", "--dir", "/tmp", "--maxmemory-policy", "noeviction", "--protected-mode", "no"]
    containers = {
        REDIS: {
            "image": f"{cluster.repository}redis:{cluster.tag}", "ports": [{"containerPort": 6379}],
            "command": [*redis, "--requirepass", password], "env": [{"name": "REDISCLI_AUTH", "value": password}],
        },
        OBJECTS: {
            "image": f"{cluster.repository}{IMAGE}:{cluster.tag}", "ports": [{"containerPort": 9000}],
            "command": ["python", "-c", S3, BUCKET],
        },
    }  # fmt: skip
    for name, container in containers.items():
        kubectl.apply(*_served(kubectl, name, container, avoid))
    values = {"redis-url": f"redis://:{password}@{REDIS}:6379/0", "AWS_ACCESS_KEY_ID": "stratos"}
    about = {"name": "stratos-stores", "namespace": kubectl.namespace}
    values["AWS_SECRET_ACCESS_KEY"] = secrets.token_hex(16)
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": values})
    _make_keys(release)
    for name in containers:
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=180s", timeout_s=190)


def ask_redis(kubectl: Kubectl, *words: str) -> str:
    """What it answers."""
    return kubectl("exec", REDIS, "--", "redis-cli", *words).strip()


def _make_keys(release: Release) -> None:
    """By the documented command, with the label by which tests find a release's key."""
    namespace, made = release.kubectl.namespace, [part for key in KEYS for part in ("--make", key)]
    command = [sys.executable, "-m", "stratos.cli", "admin", "make-credentials", "--secret", "stratos-keys", *made]
    with _api_server() as url:
        run([*command, "--namespace", namespace, "--api-server", url, "--label", release.selector])


@contextmanager
def _api_server() -> Iterator[str]:
    """Its address on this machine, without a password."""
    with subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            assert found, "kubectl proxy said no address"
            yield f"http://{found[0]}"
        finally:
            process.terminate()


def _served(
    kubectl: Kubectl, name: str, container: Mapping[str, Any], avoid: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod and its Service."""
    port = container["ports"][0]["containerPort"]
    common = {
        "name": name, "imagePullPolicy": "IfNotPresent", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2},
    }  # fmt: skip
    spec = {
        "containers": [common | dict(container)], "volumes": [{"name": "tmp", "emptyDir": {}}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "affinity": avoiding(*avoid), "priorityClassName": kubectl.priority_class,
        "automountServiceAccountToken": False, "enableServiceLinks": False, "terminationGracePeriodSeconds": 0,
    }  # fmt: skip
    about = {"name": name, "namespace": kubectl.namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about | {"labels": {"store": name}}, "spec": spec}
    ways_in = {"selector": {"store": name}, "ports": [{"port": port}]}
    return pod, {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": ways_in}
