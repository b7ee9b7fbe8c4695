"""A router that finds its workers by name: pods come and go, the name service goes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratos.core.placement import WorkerRole
from stratos.rpc.clients.name_lookup import NoSuchName
from stratos.rpc.clients.router import RouterClient
from stratos_router.settings import RouterSettings
from tests.support.waiting import eventually
from tests.support.worlds.router_world import FakeWorker, ask, by_id, fleet_of, make_status, router_in_task, until_live


@dataclass
class Names:
    """A name service; pods of a headless Service share the port and differ in their address."""

    pods: list[str] = field(default_factory=list)
    is_down: bool = False
    num_asked: int = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.num_asked += 1
        if self.is_down:
            raise TimeoutError
        if not self.pods:
            raise NoSuchName(host)
        return list(self.pods)


async def start_pod(worker_id: str, host: str, port: int = 0) -> FakeWorker:
    worker = FakeWorker(make_status(worker_id, WorkerRole.DECODE))
    await worker.start(port, host)
    return worker


async def worker_ids(client: RouterClient) -> set[str]:
    return set(by_id(await fleet_of(client)))


async def test_pods_come_and_go_and_an_outage_of_the_name_service_takes_none_away() -> None:
    names = Names(["127.0.0.1"])
    pods = [await start_pod("pod-a", "127.0.0.1")]
    port = int(pods[0].address.rpartition(":")[2])
    settings = RouterSettings(discovery=f"dns://decode@pool:{port}", discovery_interval_s=0.01, resolve_interval_s=0.05)
    try:
        async with router_in_task(settings, names.resolve) as client:
            await until_live(client, "pod-a")  # the worker's own name, not its address
            pods.append(await start_pod("pod-b", "127.0.0.2", port))
            names.pods.append("127.0.0.2")
            await until_live(client, "pod-a", "pod-b")

            names.pods.remove("127.0.0.1")  # it drains: no longer named, and still connected
            await until_asked_again(names)
            assert await worker_ids(client) == {"pod-a", "pod-b"}
            await pods[0].stop()
            await eventually(lambda: has_workers(client, {"pod-b"}))

            for names.is_down, names.pods in ((True, ["127.0.0.2"]), (False, [])):
                await until_asked_again(names)
                assert (await client.schedule(ask(f"req-{names.is_down}"))).decode.address == pods[1].address
            await pods[1].stop()
            await eventually(lambda: is_out(client, pods[1].address))
            await until_asked_again(names)
            assert await worker_ids(client) == {"pod-b"}  # it is dialled again until it comes back
            pods[1] = await start_pod("pod-b", "127.0.0.2", port)
            await until_live(client, "pod-b")
    finally:
        for pod in pods:
            await pod.stop()


async def test_a_broken_connection_is_a_reason_to_ask_at_once() -> None:
    names = Names(["127.0.0.1"])
    pod = await start_pod("pod-a", "127.0.0.1")
    port = int(pod.address.rpartition(":")[2])
    settings = RouterSettings(discovery=f"dns://decode@pool:{port}", discovery_interval_s=0.01, resolve_interval_s=3600)
    try:
        async with router_in_task(settings, names.resolve) as client:
            await until_live(client, "pod-a")
            assert names.num_asked == 1
            other = await start_pod("pod-b", "127.0.0.2", port)
            names.pods = ["127.0.0.2"]
            await pod.stop()
            try:
                await until_live(client, "pod-b")
            finally:
                await other.stop()
    finally:
        await pod.stop()


async def until_asked_again(names: Names) -> None:
    """Two whole lookups, so that the router has acted on at least one that began after the change."""
    before = names.num_asked
    await eventually(lambda: names.num_asked >= before + 2, "the name is looked up again")


async def has_workers(client: RouterClient, wanted: set[str]) -> bool:
    return await worker_ids(client) == wanted


async def is_out(client: RouterClient, address: str) -> bool:
    return not any(worker.is_live for worker in (await fleet_of(client)).workers if worker.ref.address == address)
