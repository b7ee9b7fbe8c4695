"""An API server whose pods are processes of this machine: signals, evictions, programs and connections are real.

It plays the kubelet too: a process that ended is started again in its pod, and a pod that leaves gets a SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Object = dict[str, Any]
NAMESPACE, NODE = "stratos", "node-1"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
READY = "print('ready', flush=True)"
SLEEPER = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
{READY}
signal.sigwait([signal.SIGTERM])
"""


@dataclass
class Container:
    """A process, and what the kubelet says of it. Its program begins with ``READY``."""

    program: str
    process: Any = None
    restarts: int = 0
    last: Object = field(default_factory=dict)
    is_starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> list[bytes]:
        """The words of its first line after "ready"."""
        self.process = await asyncio.create_subprocess_exec(sys.executable, "-c", self.program, stdout=-1)
        first, *more = (await self.process.stdout.readline()).split()
        assert first == b"ready"
        return more

    async def restart(self) -> None:
        """Start it again where it has ended; one of those who ask at once does it."""
        async with self.is_starting:
            if self.process.returncode is not None:
                self.last = {"terminated": {"exitCode": self.exit_code, "containerID": f"runc://{self.id}"}}
                self.restarts += 1
                await self.start()

    @property
    def id(self) -> str:
        return f"{self.restarts:02d}{id(self):062x}"

    @property
    def exit_code(self) -> int:
        return -self.process.returncode + 128 if self.process.returncode < 0 else int(self.process.returncode)


class FakePods:
    """The state of a cluster of one node."""

    def __init__(self) -> None:
        self.url = ""
        self.pods: dict[str, Object] = {}
        self.containers: dict[str, Container] = {}
        self.namespaces: list[str] = []
        self.node: Object = {"metadata": {"name": NODE}, "spec": {}}
        self.denied: set[str] = set()
        """Resources that may not be used, with their sub-resources."""
        self.num_refused_evictions = 0
        """So many are refused by a budget, before one is let through."""
        self.logs: dict[str, str] = {}
        self.is_down = False
        self._events: list[Object] = []
        self._watches: set[asyncio.Event] = set()
        self._numbers = iter(range(10**6))
        self._leaving: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def add_pod(self, component: str, *, program: str = SLEEPER, ports: Sequence[str] = ()) -> str:
        """Add one whose program says with ``READY`` at which port it answers for all these; else nothing does."""
        name = f"stratos-{component}-{next(self._numbers):04d}"
        self.containers[name] = Container(program)
        number = int((await self.containers[name].start() or ["1"])[0])
        listed = [{"name": port, "containerPort": number} for port in ports]
        labels = {"app.kubernetes.io/component": component}
        self.pods[name] = {
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels},
            "spec": {"nodeName": NODE, "containers": [{"name": component, "image": "image", "ports": listed}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
        }  # fmt: skip
        return name

    async def shown(self, name: str) -> Object:
        """A pod as the API server has it; what ended was started again."""
        pod, container = self.pods[name], self.containers[name]
        if "deletionTimestamp" not in pod["metadata"]:
            await container.restart()
        status = {
            "name": pod["metadata"]["labels"]["app.kubernetes.io/component"], "restartCount": container.restarts,
            "containerID": f"runc://{container.id}", "lastState": container.last, "state": {},
        }  # fmt: skip
        return pod | {"status": {**pod["status"], "containerStatuses": [status]}}

    async def call(self, request: web.Request) -> web.StreamResponse:
        """One request; a cluster that ends waits for it, since it may be starting or ending a process."""
        self._running.add(call := asyncio.current_task())  # type: ignore[arg-type]
        try:
            return await self._answer(request)
        finally:
            self._running.discard(call)  # type: ignore[arg-type]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.is_down:
            return web.json_response({"message": "down"}, status=500)
        if request.path == PODS and "watch" in request.query:
            return await self._watch(request)
        if request.path.endswith("/exec"):
            return await self._exec(request)
        if request.path.endswith("/portforward"):
            return await self._forward(request)
        body = await request.json() if request.can_read_body else {}
        if request.path.endswith("/log"):
            return web.Response(text=self.logs.get(request.path.split("/")[-2], ""))
        try:
            return web.json_response(await self._object(request.method, request.path, body, request.query))
        except KeyError:
            return web.json_response({"message": "not found"}, status=404)
        except PermissionError as error:
            return web.json_response({"message": str(error)}, status=429)

    async def _object(self, method: str, path: str, body: Object, query: Any) -> Object:
        name = path.rpartition("/")[2]
        if name == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join([asked["resource"], *([asked["subresource"]] if "subresource" in asked else [])])
            return {"status": {"allowed": resource not in self.denied}}
        if path == "/api/v1/namespaces":
            self.namespaces.append(body["metadata"]["name"])
            return body
        if method == "DELETE" and path.startswith("/api/v1/namespaces/"):
            self.namespaces.remove(name)
            return {}
        if path == f"/api/v1/nodes/{NODE}":
            self.node["spec"] |= body.get("spec", {})
            return self.node
        if path == PODS:
            chosen = query.get("labelSelector", "").partition("component=")[2]
            return {"items": [await self.shown(one) for one in list(self.pods) if chosen in one]}
        if name == "eviction":
            return self._evict(path.split("/")[-2])
        if path.startswith(f"{PODS}/"):
            return await self.shown(name)
        if "/pods" in path:
            return {"metadata": {"name": name}, "status": {"phase": "Running"}}
        if name == "deployments":
            return {"items": []}
        raise KeyError(path)

    def _evict(self, name: str) -> Object:
        pod = self.pods[name]
        if self.num_refused_evictions:
            self.num_refused_evictions -= 1
            raise PermissionError("the budget lets none go")
        pod["metadata"]["deletionTimestamp"] = "now"
        self.containers[name].process.terminate()
        self._leaving.add(task := asyncio.create_task(self._leave(name)))
        task.add_done_callback(self._leaving.discard)
        return {}

    async def _leave(self, name: str) -> None:
        await self.containers[name].process.wait()
        shown = await self.shown(name)
        ended = {"exitCode": self.containers[name].exit_code}
        shown["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
        del self.pods[name]
        self._events.append({"type": "DELETED", "object": shown})
        for watch in self._watches:
            watch.set()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """All that has happened to a pod, and what comes: each has the one version."""
        answer, more, num_sent = web.StreamResponse(), asyncio.Event(), 0
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        self._watches.add(more)
        await answer.prepare(request)
        with suppress(ConnectionError):  # the client has seen enough
            while not self._is_ending:
                for event in self._events[num_sent:]:
                    if event["object"]["metadata"]["name"] == name:
                        await answer.write(json.dumps(event).encode() + b"\n")
                num_sent = len(self._events)
                await more.wait()
                more.clear()
        return answer

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        """The program runs here; for the container of a pod it finds that pod's process."""
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        *argv, text = request.query.getall("command")
        task = json.loads(text)
        for container in self.containers.values():
            if task.get("container") == container.id:
                task["pid"] = container.process.pid
        child = await asyncio.create_subprocess_exec(
            sys.executable, *argv[1:], json.dumps(task), stdin=-1, stdout=-1, stderr=-1
        )
        feeding = asyncio.create_task(_feed(socket, child.stdin))
        try:
            await _tell(socket, child)
        finally:  # its client may have gone, and this cluster may end
            feeding.cancel()
            if child.returncode is None:
                child.terminate()
            await child.communicate()
        return socket

    async def end(self) -> None:
        """End all processes, once nothing is asked any more."""
        self._is_ending = True
        for watch in self._watches:
            watch.set()
        if going_on := self._running | self._leaving:
            await asyncio.wait(going_on)
        for container in self.containers.values():
            if container.process.returncode is None:
                container.process.kill()
            await container.process.communicate()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        port = int(request.query["ports"])
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + port.to_bytes(2, "little"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        feeding = asyncio.create_task(_feed(socket, writer))
        while data := await reader.read(1 << 14):
            await socket.send_bytes(b"\0" + data)
        await socket.close()
        feeding.cancel()
        writer.close()
        return socket


async def _tell(socket: web.WebSocketResponse, child: Any) -> None:
    """What a program prints, and how it ends."""
    while line := await child.stdout.readline():
        await socket.send_bytes(b"\1" + line)
    await socket.send_bytes(b"\2" + await child.stderr.read())
    outcome = {"status": "Success"} if await child.wait() == 0 else {"status": "Failure", "message": "it failed"}
    await socket.send_bytes(b"\3" + json.dumps(outcome).encode())
    await socket.close()


async def _feed(socket: web.WebSocketResponse, writer: Any) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[0] == 0:
            writer.write(message.data[1:])
            await writer.drain()
    writer.close()


@asynccontextmanager
async def fake_pods() -> AsyncIterator[FakePods]:
    """A cluster that answers on loopback; its processes end with it."""
    cluster = FakePods()
    app = web.Application()
    handler: Callable[[web.Request], Any] = cluster.call
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    cluster.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield cluster
    finally:
        await runner.cleanup()
        await cluster.end()
