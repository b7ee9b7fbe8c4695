"""An API server in little, over real HTTP: versions that writers must name, a ReplicaSet that follows its scale.

Objects are plain dictionaries; what a test changes by hand is seen by the next call.  ``is_down`` cuts every call.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stratos.rpc.serving.embedded_http import EmbeddedServer

Object = dict[str, Any]
NAMESPACE = "stratos"
COST = "controller.kubernetes.io/pod-deletion-cost"


@dataclass
class FakeKubernetes:
    """The state of a cluster."""

    url: str = ""
    is_down: bool = False
    deployments: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    leases: dict[str, Object] = field(default_factory=dict)
    api_services: dict[str, Object] = field(default_factory=dict)
    config_maps: dict[str, Object] = field(default_factory=dict)
    reviews: list[Object] = field(default_factory=list)
    """SubjectAccessReviews that were asked."""
    allowed: set[str] = field(default_factory=set)
    """Users that may do anything."""
    writes: list[str] = field(default_factory=list)
    """Method and path of every call that changed something."""
    _versions: Any = field(default_factory=lambda: itertools.count(1))
    _numbers: Any = field(default_factory=itertools.count)

    def add_deployment(self, name: str, component: str, model: str, replicas: int) -> None:
        self.deployments[name] = {
            "metadata": {"name": name, "resourceVersion": self._version(), "annotations": {}},
            "spec": {"replicas": replicas},
            "labels": {"app.kubernetes.io/component": component, "stratosserve.io/model": model},
        }

    def follow(self, *, is_ready: bool = True) -> None:
        """What the controllers do: pods come and go until there are as many as a Deployment should have."""
        for name, deployment in self.deployments.items():
            own = {pod for pod, found in self.pods.items() if found["owner"] == name}
            for _ in range(deployment["spec"]["replicas"] - len(own)):
                self.add_pod(name, is_ready=is_ready)
            surplus = len(own) - deployment["spec"]["replicas"]
            for pod in sorted(own, key=self._cost)[: max(0, surplus)]:
                del self.pods[pod]

    def add_pod(self, deployment: str, *, is_ready: bool = True, address: str = "127.0.0.1") -> str:
        name = f"{deployment}-{next(self._numbers)}"
        self.pods[name] = {
            "owner": deployment,
            "metadata": {"name": name, "labels": self.deployments[deployment]["labels"], "annotations": {}},
            "status": {"phase": "Running", "podIP": address, "conditions": [_ready(is_ready)]},
        }
        return name

    def make_ready(self, pod: str) -> None:
        self.pods[pod]["status"]["conditions"] = [_ready(True)]

    def _cost(self, pod: str) -> tuple[int, str]:
        return int(self.pods[pod]["metadata"]["annotations"].get(COST, "0")), pod

    def _version(self) -> str:
        return str(next(self._versions))

    async def call(self, request: Request) -> Response:
        """Answer one request."""
        if self.is_down:
            return Response(status_code=500)
        body = await request.json() if request.method in ("POST", "PUT", "PATCH") else {}
        path, method = request.url.path, request.method
        if method != "GET" and "subjectaccessreviews" not in path:
            self.writes.append(f"{method} {path}")
        parts = path.strip("/").split("/")
        if parts[-1] == "subjectaccessreviews":
            self.reviews.append(body)
            return JSONResponse({"status": {"allowed": body["spec"]["user"] in self.allowed}})
        if parts[-1] == "scale":
            return self._scale(method, parts[-2], body)
        kinds = {"leases": self.leases, "deployments": self.deployments, "pods": self.pods}
        kinds |= {"apiservices": self.api_services, "configmaps": self.config_maps}
        if parts[-1] in kinds:
            return self._collection(method, kinds[parts[-1]], body)
        return self._object(method, kinds[parts[-2]], parts[-1], body)

    def _collection(self, method: str, found: dict[str, Object], body: Object) -> Response:
        if method == "GET":
            return JSONResponse({"items": list(found.values())})
        name = body["metadata"]["name"]
        if name in found:
            return _status(409)
        body["metadata"]["resourceVersion"] = self._version()
        found[name] = body
        return JSONResponse(body, status_code=201)

    def _object(self, method: str, found: dict[str, Object], name: str, body: Object) -> Response:
        if name not in found:
            return _status(404)
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != found[name]["metadata"]["resourceVersion"]:
                return _status(409)
            found[name] = body
        elif method == "PATCH":
            _merge(found[name], body)
        if method != "GET":
            found[name]["metadata"]["resourceVersion"] = self._version()
        return JSONResponse(found[name])

    def _scale(self, method: str, name: str, body: Object) -> Response:
        deployment = self.deployments.get(name)
        if deployment is None:
            return _status(404)
        metadata = deployment["metadata"]
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != metadata["resourceVersion"]:
                return _status(409)
            deployment["spec"]["replicas"] = body["spec"]["replicas"]
            metadata["resourceVersion"] = self._version()
        own = {"name": name, "namespace": NAMESPACE, "resourceVersion": metadata["resourceVersion"]}
        return JSONResponse({"kind": "Scale", "metadata": own, "spec": {"replicas": deployment["spec"]["replicas"]}})


@asynccontextmanager
async def fake_kubernetes() -> AsyncIterator[FakeKubernetes]:
    """A cluster that answers on loopback."""
    cluster = FakeKubernetes()
    methods = ["GET", "POST", "PUT", "PATCH"]
    app = Starlette(routes=[Route("/{path:path}", cluster.call, methods=methods)])
    # By its protocol asyncio knows it as TCP: else an answer's body waits 40 ms for its head to be acknowledged.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    cluster.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = EmbeddedServer(
        uvicorn.Config(app, loop="none", lifespan="off", ws="none", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield cluster
    finally:
        server.end()
        await serving


def _ready(is_ready: bool) -> Object:
    return {"type": "Ready", "status": "True" if is_ready else "False"}


def _status(code: int) -> Response:
    return JSONResponse({"kind": "Status", "message": f"refused with {code}", "code": code}, status_code=code)


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
