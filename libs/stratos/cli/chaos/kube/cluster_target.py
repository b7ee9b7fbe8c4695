"""A release in a cluster, as scenarios see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from stratos.cli.chaos.faults.contract import Proof
from stratos.cli.chaos.faults.fault import Fault, Repertoire
from stratos.cli.chaos.kube.admin import ReleaseAdmin, opened_admin
from stratos.cli.chaos.kube.api import KubeApi, Object
from stratos.cli.chaos.kube.channels import forwarded
from stratos.cli.chaos.kube.cluster_faults import CLUSTER, ClusterFaults, is_from_nodes
from stratos.cli.chaos.kube.node_pods import NodePods
from stratos.cli.chaos.kube.release import Release, ReleasePlace, component, metric_of
from stratos.cli.chaos.kube.rights import check_rights, rights_for
from stratos.cli.chaos.target import RETURN_TIMEOUT_S, moved_in, new_tenant, remove_each, wait_known, within
from stratos.common.errors import BadRequest, DependencyDown, NotFound, StratosError

WORKERS = ("decode-worker", "prefill-worker")
WORK: tuple[tuple[str, dict[str, str]], ...] = (
    ("stratos_requests_running", {}),
    ("stratos_kv_staging_slots", {"state": "granted"}),
)
"""Of a worker that has some: sequences, or places for KV that comes or goes."""
ROUTER_WORKERS = "stratos_router_workers"
MODELS_TIMEOUT_S = 30.0
NUM_TOKENS = 400
"""A fault takes a second to come: it begins a program on a node."""


@dataclass(slots=True)
class ClusterTarget:
    """A release that may be broken."""

    release: Release
    base_url: str
    admin: ReleaseAdmin
    nodes: NodePods
    models: tuple[str, ...] = ()
    tenants: list[str] = field(default_factory=list, init=False)
    without: tuple[str, ...] = field(default=(), init=False)
    repertoire: Repertoire = field(default=CLUSTER, init=False)
    num_tokens: int = field(default=NUM_TOKENS, init=False)
    _began_s: float = field(default_factory=time.monotonic, init=False)

    async def about(self) -> str:
        """The release."""
        version, pods = await self.release.api.call("GET", "/version"), await self.release.pods()
        nodes = {pod["spec"]["nodeName"] for pod in pods.values()}
        number = f"{version['major']}.{version['minor']}"
        return f"a release of {len(pods)} pods on {len(nodes)} nodes, Kubernetes {number}"

    async def names(self) -> list[str]:
        """Pods, as they are called here."""
        return list(await self.release.pods())

    async def prepare(self, faults: Collection[Fault]) -> None:
        """Look for rights, and make the pods beside the victims.

        Raises:
            PermissionDenied: rights are missing.
            StratosError: something else is, or the models are not known.
        """
        place, kinds = self.release.place, {fault.kind for fault in faults}
        await check_rights(self.release.api, rights_for(kinds, place.namespace, has_key=bool(place.admin_key)))
        self.models = self.models or await self._served()
        if any(map(is_from_nodes, faults)):
            await self.nodes.make()

    async def new_key(self) -> str:
        """Key of a new tenant."""
        self.tenants.append(new_tenant())
        key = await self.admin.create_key(self.tenants[-1])
        await wait_known(self.base_url, key)
        return key

    async def remove_tenants(self) -> None:
        """Delete the tenants that were made here."""
        await remove_each(self.tenants, self.admin.remove_tenant)

    async def is_whole(self) -> bool:
        """Every pod is ready, and every router knows each worker as one that is not out."""
        try:
            if await self.release.unready():
                return False
            pods = await self.release.pods()
            num_workers = sum(component(pod) in WORKERS for pod in pods.values())
            routers = [pod for pod in pods.values() if component(pod) == "router"]
            return set(await asyncio.gather(*map(self._num_seen, routers))) == {num_workers}
        except StratosError:
            return False

    async def _num_seen(self, router: Object) -> float:
        """Workers that a router knows, but those that are out: some may sleep."""
        shown = await self.release.metrics(router)
        return metric_of(shown, ROUTER_WORKERS) - metric_of(shown, ROUTER_WORKERS, {"state": "out"})

    async def wait_whole(self) -> None:
        """Wait for that."""
        await within(self.is_whole, RETURN_TIMEOUT_S, "not every pod has come back")

    async def is_busy(self, names: Collection[str]) -> bool:
        """Whether one of these workers has sequences, as it says itself."""
        try:
            pods = await self.release.pods()
            all_shown = await asyncio.gather(*(self.release.metrics(pods[name]) for name in names if name in pods))
            counts = [metric_of(shown, *one) for shown in all_shown for one in WORK]
            return any(counts)
        except StratosError:
            return False

    async def moved(self, name: str) -> set[str]:
        """Streams that gateways resumed, as the logs say of those that are there."""
        gateways = [pod for pod in (await self.release.pods()).values() if component(pod) == "gateway"]
        return moved_in(await self.release.logs(gateways, time.monotonic() - self._began_s + 1), name)

    async def strike(self, fault: Fault, in_effect: asyncio.Event) -> Proof:
        """Inject, and wait for the end."""
        return await ClusterFaults(self.release, self.nodes).strike(fault, in_effect)

    async def _served(self) -> tuple[str, ...]:
        """The first model, and its adapters."""
        headers = {"authorization": f"Bearer {await self.new_key()}"}
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=MODELS_TIMEOUT_S) as client:
                answer = (await client.get(f"{self.base_url}/models", headers=headers)).raise_for_status()
        except httpx.HTTPError as error:
            raise DependencyDown(f"{self.base_url} does not say what it serves: {error!r}") from error
        served = answer.json()["data"]
        first = next((one["id"] for one in served if not one.get("parent") and "chosen" not in one), "")
        if not first:
            raise NotFound(f"{self.base_url} serves no model")
        return (first, *(one["id"] for one in served if one.get("parent") == first and one.get("root") != first))


@asynccontextmanager
async def opened_target(api: KubeApi, place: ReleasePlace) -> AsyncIterator[ClusterTarget]:
    """A release, and what leads to it; the pods of the run are removed in the end.

    Raises:
        StratosError: there is no such release, or it cannot be used so.
    """
    release = Release(api, place)
    pods = await release.pods()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(opened_admin(release))
        url = place.url.rstrip("/")
        if not url:
            if any(volume["name"] == "http-tls" for volume in pods["gateway-0"]["spec"]["volumes"]):
                raise BadRequest("the gateways have a certificate of a name of theirs: give --url")
            address = await stack.enter_async_context(forwarded(api, lambda: release.next_gateway("http")))
            url = f"http://{address}/v1"
        nodes = NodePods(api, _images(pods))
        stack.push_async_callback(nodes.remove)
        yield ClusterTarget(release, url, admin, nodes, place.models)


def _images(pods: dict[str, Object]) -> dict[str, str]:
    """An image for each node: that of a service which runs there, so it has Python and need not be fetched."""
    images = {}
    for pod in pods.values():
        if component(pod) not in ("redis", "object-store"):
            containers = pod["spec"]["containers"]
            images[pod["spec"]["nodeName"]] = next(one["image"] for one in containers if one["name"] == component(pod))
    return images
