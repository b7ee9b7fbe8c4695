"""Certificates in Secrets of a cluster, over the API server's HTTP interface: four verbs on one kind need no client.

In a pod everything comes from its ServiceAccount; elsewhere ``kubectl proxy`` gives an address without TLS.
The Role of the pod needs ``get``, ``update`` and ``delete`` on the Secrets by name, and ``create`` on Secrets, which
Kubernetes cannot limit to names.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stratos.common.errors import DependencyDown, Overloaded, PermissionDenied, StratosError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10.0
_ABSENT, _CONFLICT = 404, 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How to reach an API server, and which Secrets are ours."""

    url: str
    namespace: str
    prefix: str
    """Names of Secrets are PREFIX-ROLE and PREFIX-ca."""
    token: str = field(default="", repr=False)
    ca_path: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


def cluster_of_pod(prefix: str, namespace: str, url: str, labels: Mapping[str, str]) -> Cluster:
    """The cluster of this pod, or the one at ``url``.

    Raises:
        DependencyDown: this is no pod with a ServiceAccount, and no address was given.
    """
    if url:
        return Cluster(url=url, namespace=namespace or "default", prefix=prefix, labels=labels)
    try:
        token = (SERVICE_ACCOUNT / "token").read_text()
        own = (SERVICE_ACCOUNT / "namespace").read_text()
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except (OSError, KeyError) as error:
        raise DependencyDown(f"this is no pod with a ServiceAccount, give --api-server: {error}") from None
    return Cluster(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or own,
        prefix=prefix,
        token=token,
        ca_path=SERVICE_ACCOUNT / "ca.crt",
        labels=labels,
    )


class SecretStore:
    """A Secret per document."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, dict[str, Any]] = {}
        """By document: the Secret that was read. A write replaces this version of it and no other one."""

    def read(self, name: str) -> dict[str, bytes]:
        status, secret = self._call("GET", self._path(name))
        if status == _ABSENT:
            return {}
        self._known[name] = secret
        return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        known = self._known.get(name)
        # Of a Secret that others made too, everything but the files stays: its type, and annotations of a chart's tool.
        body = known or {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self._name(name)}, "type": "Opaque"}
        labels = {**body["metadata"].get("labels", {}), **self._cluster.labels}
        data = {key: base64.b64encode(value).decode() for key, value in files.items()}
        body = {**body, "metadata": {**body["metadata"], "labels": labels}, "data": data}
        method, path = ("POST", self._collection()) if known is None else ("PUT", self._path(name))
        status, secret = self._call(method, path, body)
        if status in (_ABSENT, _CONFLICT):
            raise Overloaded(f"another run changed the Secret {self._name(name)}; run this again")
        self._known[name] = secret

    def remove(self, name: str) -> None:
        self._call("DELETE", self._path(name))

    def _name(self, document: str) -> str:
        return f"{self._cluster.prefix}-{document}"

    def _collection(self) -> str:
        return f"/api/v1/namespaces/{self._cluster.namespace}/secrets"

    def _path(self, document: str) -> str:
        return f"{self._collection()}/{self._name(document)}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and answer; 404 and 409 are answers, everything else above 299 is an error."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._cluster.token:
            headers["Authorization"] = f"Bearer {self._cluster.token}"
        connection = _connect(self._cluster)
        try:
            connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
            response = connection.getresponse()
            content = json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DependencyDown(f"the API server at {self._cluster.url} does not answer: {error}") from error
        finally:
            connection.close()
        if response.status < 300 or response.status in (_ABSENT, _CONFLICT):
            return response.status, content
        raise _refusal(response.status, f"{method} {path}: {content.get('message', response.reason)}")


def _connect(cluster: Cluster) -> http.client.HTTPConnection:
    parts = urlsplit(cluster.url)
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    context = ssl.create_default_context(cafile=cluster.ca_path)
    return http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=context)


def _refusal(status: int, message: str) -> StratosError:
    return PermissionDenied(message) if status in (401, 403) else DependencyDown(message)
