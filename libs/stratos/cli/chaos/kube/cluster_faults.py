"""Faults of a release's pods, each with a proof that it took effect."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType

from stratos.cli.chaos.faults.contract import BROKEN, NOTHING, NoEffect, Proof
from stratos.cli.chaos.faults.fault import Fault, Repertoire
from stratos.cli.chaos.kube.api import Object
from stratos.cli.chaos.kube.leaving import drain_node, evict, leave
from stratos.cli.chaos.kube.node_pods import NodePods
from stratos.cli.chaos.kube.release import Release, component, port_of, service_container
from stratos.common.errors import BadRequest, NotFound

FROM_NODES = ("kill", "stop", "slow", "partition")
"""Done by a pod beside the victim."""
RESTART_S, POLL_S = 60.0, 0.2
KILLED = 137
NO_CONTAINER = "0" * 64
_LOCAL_ALONE = "only a platform of `stratos up` can suffer it"
CLUSTER = Repertoire(
    kinds=("kill", "stop", "slow", "partition", "drain", "drain-node"),
    of_gateways=("kill", "stop", "slow"),
    of_decode=("slow", "partition", "drain"),
    refused=MappingProxyType(
        {
            "reset": f"cut connections could not be proved from outside of the pod: {_LOCAL_ALONE}",
            "cut-redis": f"one peer alone is not cut off from outside of the pod: {_LOCAL_ALONE}",
            "cut-workers": f"some peers alone are not cut off from outside of the pod: {_LOCAL_ALONE}",
            "corrupt": f"KV between pods is encrypted, and what a worker received cannot be reached: {_LOCAL_ALONE}",
            "corrupt-tier": f"a worker's memory is not reached from outside of its pod: {_LOCAL_ALONE}",
            "corrupt-disk": f"a worker's volume is not reached from outside of its pod: {_LOCAL_ALONE}",
            "full-disk": f"a limit of files cannot be set for a pod that runs: {_LOCAL_ALONE}",
            "memory": f"a pod at its limit is killed, which `kill` does: {_LOCAL_ALONE}",
            "clock": f"the clock of a pod is that of its node: {_LOCAL_ALONE}",
            "gone": f"an object store of your own is yours to take away; `kill object-store` ends that of the release, "
            f"and {_LOCAL_ALONE}",
        }
    ),
)


class ClusterFaults:
    """Injects them.

    Args:
        release: whose pods.
        nodes: pods beside them.
    """

    def __init__(self, release: Release, nodes: NodePods) -> None:
        self._release, self._nodes = release, nodes

    async def strike(self, fault: Fault, in_effect: asyncio.Event) -> Proof:
        """Inject and wait for the fault's end; returns the proof.

        Raises:
            NoEffect: there is none.
            StratosError: the cluster does not answer.
        """
        if fault.target == NOTHING:
            return await self._strike_nothing(fault, in_effect)
        if fault.kind == "drain-node":
            return await drain_node(self._release, fault.target, in_effect)
        pod = await self._release.pod(fault.target)
        if fault.kind == "drain":
            return await leave(self._release, pod, in_effect)
        container, is_source = service_container(pod), component(pod) == "prefill-worker"
        broken = await self._release.broken_handoffs() if is_source else 0.0
        proof = await self._nodes.run(pod["spec"]["nodeName"], _task(fault, pod, container["containerID"]), in_effect)
        about = {"pod": pod["metadata"]["name"], "node": pod["spec"]["nodeName"], **proof}
        if fault.kind == "kill":
            about |= await self._end_of(pod, container)
        return about | ({BROKEN: await self._release.broken_handoffs() - broken} if is_source else {})

    async def _strike_nothing(self, fault: Fault, in_effect: asyncio.Event) -> Proof:
        """The same calls for what does not exist."""
        if fault.kind == "drain-node":
            return await drain_node(self._release, NOTHING, in_effect)
        if fault.kind == "drain":
            path = f"{self._release.path}/pods/{NOTHING}"
            return {"waited_for_budget_s": await evict(self._release.api, path, NOTHING)}
        pod = next(iter((await self._release.pods()).values()))
        return await self._nodes.run(pod["spec"]["nodeName"], _task(fault, pod, NO_CONTAINER), in_effect)

    async def _end_of(self, pod: Object, before: Object) -> Proof:
        """End of a container, as the kubelet says it, whose process was killed.

        Raises:
            NoEffect: it did not end so, or was not started again.
        """
        path, own = self._release.pod_path(pod), before["containerID"]
        try:
            async with asyncio.timeout(RESTART_S):
                while True:
                    now = await self._release.api.call("GET", path)
                    status = service_container(now)
                    ended = status["lastState"].get("terminated") or {}
                    if status["restartCount"] > before["restartCount"] and ended.get("containerID") == own:
                        break
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise NoEffect(f"{pod['metadata']['name']} was not started again in {RESTART_S:.0f} s") from None
        except NotFound:
            raise NoEffect(f"{pod['metadata']['name']} is gone: others deleted it") from None
        if ended["exitCode"] != KILLED:
            raise NoEffect(f"{pod['metadata']['name']} ended with code {ended['exitCode']}, not by SIGKILL")
        return {"exit_code": ended["exitCode"], "restarts": status["restartCount"]}


def _task(fault: Fault, pod: Object, container_id: str) -> Object:
    """Task of the program on the node."""
    task = {"kind": fault.kind, "container": container_id.rpartition("/")[2], "lasting_s": fault.lasting_s}
    if fault.kind == "partition":
        with suppress(BadRequest):  # it has no port at which a node may knock
            task |= {"address": pod["status"]["podIP"], "port": port_of(pod, "metrics")}
    return task


def is_from_nodes(fault: Fault) -> bool:
    """Whether it needs a pod beside the victim."""
    return fault.kind in FROM_NODES
