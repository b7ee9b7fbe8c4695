"""An API server in little, over real HTTP: versions that writers must name, watches, a ReplicaSet that follows scales.

Objects are plain dictionaries, in collections that make events of what is set or deleted in them. Going ``down`` cuts
every call and every watch.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stratos.rpc.serving.embedded_http import EmbeddedServer
from tests.support.fakes.kubernetes_watches import Collection, Object

NAMESPACE = "stratos"
COST = "controller.kubernetes.io/pod-deletion-cost"


class FakeKubernetes:
    """The state of a cluster."""

    def __init__(self) -> None:
        self.url = ""
        self._is_down = False
        self._numbers, versions = itertools.count(), itertools.count(1)
        self._next_version = lambda: next(versions)
        self.deployments, self.pods, self.leases, self.api_services, self.config_maps = (
            Collection(self._next_version) for _ in range(5)
        )
        self.models, self.jobs, self.budgets, self.scalers = (Collection(self._next_version) for _ in range(4))
        self.reviews: list[Object] = []
        """SubjectAccessReviews that were asked."""
        self.allowed: set[str] = set()
        """Users that may do anything."""
        self.applied: list[tuple[str, str]] = []
        """Kind and name of every server-side apply, refused ones included."""
        self.refused: dict[tuple[str, str], str] = {}
        """Why the API server takes no such object."""
        self.refused_with = 422
        self.calls: list[str] = []
        """Method and path of every call, watches included."""

    @property
    def writes(self) -> list[str]:
        """Those that changed something."""
        return [call for call in self.calls if not call.startswith("GET ") and "subjectaccessreviews" not in call]

    @property
    def is_down(self) -> bool:
        """Whether nothing is answered."""
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        self._is_down = value
        if value:
            self.end_watches("cut")

    def end_watches(self, how: str = "done") -> None:
        """All of them, as ``Collection.end_watches``."""
        for found in {id(found): found for found in self._kinds().values()}.values():
            found.end_watches(how)

    def add_deployment(self, name: str, component: str, model: str, replicas: int) -> None:
        self.deployments[name] = {
            "metadata": {"name": name, "annotations": {}},
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
        self.pods.changed(pod)

    def _cost(self, pod: str) -> tuple[int, str]:
        return int(self.pods[pod]["metadata"]["annotations"].get(COST, "0")), pod

    async def call(self, request: Request) -> Response:
        """Answer one request."""
        self.calls.append(f"{request.method} {request.url.path}")
        if self.is_down:
            return Response(status_code=500)
        body = await request.json() if request.method != "GET" else {}
        path, method = request.url.path, request.method
        parts = path.strip("/").split("/")
        if parts[-1] == "subjectaccessreviews":
            self.reviews.append(body)
            return JSONResponse({"status": {"allowed": body["spec"]["user"] in self.allowed}})
        if parts[-1] == "scale":
            return self._scale(method, parts[-2], body)
        kinds = self._kinds()
        if parts[-1] in kinds:
            found = kinds[parts[-1]]
            return found.answer_get(request) if method == "GET" else _create(found, body)
        if parts[-1] == "status":
            parts.pop()
        if request.headers.get("content-type") == "application/apply-patch+yaml":
            self.applied.append((body["kind"], body["metadata"]["name"]))
            if (refused := self.refused.get((body["kind"], body["metadata"]["name"]))) is not None:
                return JSONResponse({"message": refused}, status_code=self.refused_with)
            if parts[-1] not in kinds[parts[-2]] and "resourceVersion" not in body["metadata"]:
                body["metadata"]["uid"] = f"uid-{self._next_version()}"
                kinds[parts[-2]][parts[-1]] = body
                return JSONResponse(body, status_code=201)
        return self._object(method, kinds[parts[-2]], parts[-1], body)

    def _kinds(self) -> dict[str, Collection]:
        kinds = {"leases": self.leases, "deployments": self.deployments, "pods": self.pods, "jobs": self.jobs}
        kinds |= {"apiservices": self.api_services, "configmaps": self.config_maps, "models": self.models}
        return kinds | {"poddisruptionbudgets": self.budgets, "horizontalpodautoscalers": self.scalers}

    def _object(self, method: str, found: Collection, name: str, body: Object) -> Response:
        if name not in found:
            return _status(404)
        is_other = (body.get("metadata") or {}).get("resourceVersion") != found[name]["metadata"]["resourceVersion"]
        if method == "PUT":
            if is_other:
                return _status(409)
            found[name] = body
        elif method == "PATCH":
            if is_other and "resourceVersion" in (body.get("metadata") or {}):
                return _status(409)
            _merge(found[name], body)
            found.changed(name)
            metadata = found[name]["metadata"]
            if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
                return JSONResponse(found.pop_with_event(name))
        elif method == "DELETE":
            return JSONResponse(found.pop_with_event(name))
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
            self.deployments.changed(name)
        own = {"name": name, "namespace": NAMESPACE, "resourceVersion": metadata["resourceVersion"]}
        return JSONResponse({"kind": "Scale", "metadata": own, "spec": {"replicas": deployment["spec"]["replicas"]}})


@asynccontextmanager
async def fake_kubernetes() -> AsyncIterator[FakeKubernetes]:
    """A cluster that answers on loopback."""
    cluster = FakeKubernetes()
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", cluster.call, methods=methods)])
    # By its protocol asyncio knows it as TCP: else an answer's body waits 40 ms for its head to be acknowledged.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    cluster.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = EmbeddedServer(
        uvicorn.Config(app, loop="none", lifespan="off", ws="none", log_config=None, access_log=False)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield cluster
    finally:
        cluster.end_watches()
        server.end()
        await serving


def _create(found: Collection, body: Object) -> Response:
    name = body["metadata"]["name"]
    if name in found:
        return _status(409)
    found[name] = body
    return JSONResponse(body, status_code=201)


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
