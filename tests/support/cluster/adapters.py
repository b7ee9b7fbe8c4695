"""Registers a shipped adapter with the registry of a release, as its administrator: no command does it yet."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster.commands import wait_until
from tests.support.cluster.programs import REGISTER
from tests.support.cluster.release import Release


def register_adapter(release: Release, repository: str, tag: str, name: str, *, has_mtls: bool) -> None:
    """The adapter is in the release's object store and in its registry."""
    domain = f"{release.name}.{release.kubectl.namespace}" if has_mtls else ""
    task = {"name": name, "domain": domain, "registry": f"{release.name}-lora-registry:9000"}
    pod = _pod(release, repository, tag, json.dumps(task), has_mtls=has_mtls)
    release.kubectl.apply(pod)
    try:
        wait_until("the adapter is registered", lambda: _phase(release) in ("Succeeded", "Failed"))
        assert _phase(release) == "Succeeded", release.kubectl("logs", "register")
    finally:
        release.kubectl("delete", "pod", "register", "--wait=true")


def _phase(release: Release) -> str:
    return release.kubectl("get", "pod", "register", "-o", "jsonpath={.status.phase}")


def _pod(release: Release, repository: str, tag: str, task: str, *, has_mtls: bool) -> dict[str, Any]:
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    small = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    models = {"name": "models", "mountPath": "/models"}
    copy = {
        "name": "models", "image": f"{repository}model-demo:{tag}", "imagePullPolicy": "IfNotPresent",
        "command": ["cp", "-R", "/model", "/adapters", "/models/"], "securityContext": locked, "resources": small,
        "volumeMounts": [models],
    }  # fmt: skip
    tls: list[dict[str, Any]] = [{"name": "tls", "mountPath": "/tls", "readOnly": True}] if has_mtls else []
    register = {
        "name": "register", "image": f"{repository}lora-registry:{tag}", "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", REGISTER, task], "securityContext": locked, "resources": small,
        "volumeMounts": [
            models, {"name": "objects", "mountPath": "/objects"}, {"name": "tmp", "mountPath": "/tmp"}, *tls,
        ],
    }  # fmt: skip
    secret = {"name": "tls", "secret": {"secretName": f"{release.name}-tls-admin", "defaultMode": 0o440}}
    volumes = [
        {"name": "models", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "objects", "persistentVolumeClaim": {"claimName": f"{release.name}-objects"}},
        *([secret] if has_mtls else []),
    ]
    labels = {"app.kubernetes.io/name": "stratosserve", "app.kubernetes.io/instance": release.name,
              "app.kubernetes.io/component": "tools"}  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    spec = {"restartPolicy": "Never", "securityContext": security, "automountServiceAccountToken": False,
            "initContainers": [copy], "containers": [register], "volumes": volumes}  # fmt: skip
    metadata = {"name": "register", "namespace": release.kubectl.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
