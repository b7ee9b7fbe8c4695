"""A volume that pods of every node mount, for a chart that asks for one where the cluster offers none."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.kube.cluster.commands import Kubectl
from tests.support.kube.cluster.node_pods import node_pods

NAMESPACE, PARENT = "stratos-e2e-folders", "/var/tmp"
DEFAULT = "storageclass.kubernetes.io/is-default-class"
MAKE = """
import json, os, sys
path = json.loads(sys.stdin.readline())
os.makedirs(path, exist_ok=True)
os.chmod(path, 0o777)  # no kubelet sets the group of such a folder
"""
REMOVE = "import json, shutil, sys; shutil.rmtree(json.loads(sys.stdin.readline()), ignore_errors=True)"


@contextmanager
def shared_volume(image: str, namespace: str, claim: str) -> Iterator[None]:
    """ReadWriteMany for one claim, which need not be there yet, and for no other.

    It is a folder of each node: the same one where nodes share a file system, else each node has what its pods wrote.
    What writes nothing there, as a release without adapters, needs no more. The claim has to be gone at the end.

    Args:
        image: with Python, on every node.
        namespace: of the claim.
        claim: its name; its class is the cluster's default.
    """
    container = {
        "name": "folder", "image": image,
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"runAsUser": 0}, "volumeMounts": [{"name": "parent", "mountPath": PARENT}],
    }  # fmt: skip
    spec = {"volumes": [{"name": "parent", "hostPath": {"path": PARENT, "type": "Directory"}}]}
    name, cluster = f"{namespace}-{secrets.token_hex(4)}", Kubectl()
    folder = f"{PARENT}/{name}"
    with node_pods(NAMESPACE, container, spec) as pods:
        try:
            for pod in pods.values():
                pod.python(MAKE, folder)
            cluster.apply(_volume(name, folder, {"namespace": namespace, "name": claim}))
            yield
        finally:
            cluster("delete", "persistentvolume", name, "--ignore-not-found", "--wait=true", "--timeout=60s")
            for pod in pods.values():
                pod.python(REMOVE, folder)


def _volume(name: str, folder: str, claim: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "storageClassName": _default_class(), "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain", "claimRef": claim,
            "hostPath": {"path": folder, "type": "Directory"},
        },
    }  # fmt: skip


def _default_class() -> str:
    """What a claim without a class gets; empty where the cluster has none."""
    classes = [found["metadata"] for found in Kubectl().items("storageclasses")]
    defaults = [found["name"] for found in classes if found.get("annotations", {}).get(DEFAULT) == "true"]
    return defaults[0] if defaults else ""
