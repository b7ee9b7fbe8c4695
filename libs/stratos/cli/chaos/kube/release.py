"""Pods of a release, by the names that processes of a local platform have: ``decode-0`` is the first one by name."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import httpx

from stratos.cli.chaos.kube.api import KubeApi, Object
from stratos.cli.chaos.kube.channels import forwarded
from stratos.cli.chaos.target import Exposition
from stratos.common.errors import BadRequest, DependencyDown, NotFound, StratosError

NUMBERED = {"gateway": "gateway", "router": "router", "prefill-worker": "prefill", "decode-worker": "decode"}
ALONE = ("lora-registry", "autoscaler", "redis", "object-store")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePlace:
    """Which release, and how it is spoken to."""

    namespace: str
    release: str
    url: str = ""
    """Where clients reach the gateways; empty: through the API server."""
    admin_key: str = field(default="", repr=False)
    """Empty: that of the release's own Secret."""
    models: tuple[str, ...] = ()
    """Empty: the first one that is served, and its adapters."""


class Release:
    """Pods of it that run.

    Args:
        api: of the cluster.
        place: which one.
    """

    def __init__(self, api: KubeApi, place: ReleasePlace) -> None:
        self.api, self.place = api, place
        self.selector = f"app.kubernetes.io/name=stratosserve,app.kubernetes.io/instance={place.release}"
        self.path = f"/api/v1/namespaces/{place.namespace}"
        self._turns = itertools.count()

    async def pods(self) -> dict[str, Object]:
        """Pods that run and do not leave, by their names here.

        Raises:
            NotFound: there are none.
            StratosError: as ``KubeApi.call``.
        """
        found = await self.api.items(f"{self.path}/pods", self.selector)
        staying = [pod for pod in found if not is_leaving(pod) and pod.get("status", {}).get("phase") == "Running"]
        if not staying:
            raise NotFound(f"no pod of a release {self.place.release} runs in {self.place.namespace}")
        return dict(_named(sorted(staying, key=lambda pod: pod["metadata"]["name"])))

    async def pod(self, name: str) -> Object:
        """The pod of a name. Raises ``NotFound``: none has it."""
        pods = await self.pods()
        if name not in pods:
            raise NotFound(f"there is no pod named {name!r}; running: {', '.join(sorted(pods))}")
        return pods[name]

    def pod_path(self, pod: Object) -> str:
        """Path of the API server."""
        return f"{self.path}/pods/{pod['metadata']['name']}"

    async def next_gateway(self, port_name: str) -> tuple[str, int]:
        """Path and port of a gateway, of all of them that are ready by turns.

        Raises:
            DependencyDown: none is.
            BadRequest: they have no such port.
        """
        pods = await self.api.items(f"{self.path}/pods", f"{self.selector},app.kubernetes.io/component=gateway")
        ready = sorted((pod for pod in pods if is_ready(pod)), key=lambda pod: str(pod["metadata"]["name"]))
        if not ready:
            raise DependencyDown("no gateway is ready")
        pod = ready[next(self._turns) % len(ready)]
        return self.pod_path(pod), port_of(pod, port_name)

    async def unready(self) -> list[str]:
        """Pods that do not serve, or leave, and Deployments that have not as many as they should."""
        pods, deployments = await asyncio.gather(
            self.api.items(f"{self.path}/pods", self.selector),
            self.api.items(f"/apis/apps/v1/namespaces/{self.place.namespace}/deployments", self.selector),
        )
        of_services = [pod for pod in pods if component(pod) in (*NUMBERED, *ALONE)]
        return [str(pod["metadata"]["name"]) for pod in of_services if not is_ready(pod)] + [
            str(one["metadata"]["name"]) for one in deployments if not _is_complete(one)
        ]

    async def metrics(self, pod: Object) -> Exposition:
        """Metrics of a pod. Raises ``DependencyDown``: it does not answer."""
        where = self.pod_path(pod), port_of(pod, "metrics")

        async def pick() -> tuple[str, int]:
            return where

        async with forwarded(self.api, pick) as address:
            try:
                async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
                    answer = await client.get(f"http://{address}/metrics", headers={"connection": "close"})
                    return Exposition(pod["metadata"]["name"], answer.raise_for_status().text)
            except httpx.HTTPError as error:
                raise DependencyDown(f"{pod['metadata']['name']} shows no metrics: {error!r}") from error

    async def broken_handoffs(self) -> float:
        """Legs that decode workers which answer saw end without what they asked for."""
        pods = [pod for pod in (await self.pods()).values() if component(pod) == "decode-worker"]
        found = await asyncio.gather(*(self._broken_handoffs(pod) for pod in pods))
        return sum(found)

    async def _broken_handoffs(self, pod: Object) -> float:
        name, received = "stratos_kv_handoffs_total", {"side": "receiver"}
        try:
            shown = await self.metrics(pod)
            good = [metric_of(shown, name, received | {"outcome": outcome}) for outcome in ("committed", "part")]
            return metric_of(shown, name, received) - sum(good)
        except StratosError:
            return 0.0

    async def logs(self, pods: Collection[Object], since_s: float) -> list[str]:
        """Logs of the pods, also before a restart."""
        texts = [self._log(pod, since_s, previous) for pod in pods for previous in (False, True)]
        return list(await asyncio.gather(*texts))

    async def _log(self, pod: Object, since_s: float, previous: bool) -> str:
        params = [("container", component(pod)), ("sinceSeconds", str(int(since_s)))]
        try:
            return await self.api.text(f"{self.pod_path(pod)}/log", [*params, ("previous", str(previous).lower())])
        except (BadRequest, NotFound):  # it has not been restarted, or is gone
            return ""


def metric_of(shown: Exposition, metric: str, labels: Mapping[str, str] = MappingProxyType({})) -> float:
    """Sum over the series of a metric that have these labels. Raises ``NotFound``: there is no such metric."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return shown.total(metric, lambda series: all(one in series for one in wanted))


def component(pod: Object) -> str:
    """Component of the chart; also the name of the container that is the service."""
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def is_leaving(pod: Object) -> bool:
    """It was deleted, and ends."""
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Object) -> bool:
    """It serves, and does not leave."""
    conditions = {entry["type"]: entry["status"] for entry in pod.get("status", {}).get("conditions") or ()}
    return conditions.get("Ready") == "True" and not is_leaving(pod)


def port_of(pod: Object, name: str) -> int:
    """Raises ``BadRequest`` where none has the name."""
    ports = [port for one in pod["spec"]["containers"] for port in one.get("ports") or () if port.get("name") == name]
    if not ports:
        raise BadRequest(f"{pod['metadata']['name']} has no port named {name!r}")
    return int(ports[0]["containerPort"])


def service_container(pod: Object) -> Object:
    """Status of the container that is the service. Raises ``NotFound`` where the kubelet has not started it."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    found = next((one for one in statuses if one["name"] == component(pod)), None)
    if found is None or not found.get("containerID"):
        raise NotFound(f"{pod['metadata']['name']} has no container that runs")
    return dict(found)


def _named(pods: Collection[Object]) -> Iterator[tuple[str, Object]]:
    for kind, name in NUMBERED.items():
        for index, pod in enumerate(pod for pod in pods if component(pod) == kind):
            yield f"{name}-{index}", pod
    for kind in ALONE:
        yield from [(kind, pod) for pod in pods if component(pod) == kind][:1]


def _is_complete(deployment: Object) -> bool:
    wanted, status = deployment["spec"].get("replicas", 1), deployment.get("status", {})
    counts = (status.get("replicas", 0), status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return counts == (wanted, wanted, wanted)
