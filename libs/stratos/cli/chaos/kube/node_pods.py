"""Pods beside the victims: one a node, in a namespace of the run's own that allows what a release's may not.

Signals of a container do not reach its first process, and a pod that is deleted gets a SIGTERM first, whatever its
grace period. So faults that are no request come from the node.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from importlib import resources
from typing import Any

from stratos.cli.chaos.faults.contract import NoEffect, Proof
from stratos.cli.chaos.kube.api import KubeApi, Object
from stratos.cli.chaos.kube.channels import run_python
from stratos.common.errors import DependencyDown, NotFound, StratosError

READY_S, POLL_S = 120.0, 0.5
LONGEST_RUN_S = 3 * 3600
"""They end by themselves, also where nothing removes them."""


class NodePods:
    """Made as they are needed, and removed together.

    Args:
        api: of the cluster.
        images: by node: one with Python that is there already.
    """

    def __init__(self, api: KubeApi, images: Mapping[str, str]) -> None:
        self._api, self._images = api, images
        self.namespace = ""
        """Empty until it is made."""
        self._program = resources.files(__package__).joinpath("on_node.py").read_text()
        self._running = set[asyncio.Task[Proof]]()

    async def make(self) -> None:
        """On every node. Raises ``StratosError`` where the cluster allows no such pods."""
        name = f"stratos-chaos-{secrets.token_hex(4)}"
        labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
        await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self.namespace = name
        await asyncio.gather(*map(self._make, self._images))

    async def run(self, node: str, task: Mapping[str, Any], in_effect: asyncio.Event) -> Proof:
        """Do a fault to the end; one that has begun goes on to it where this is cancelled, and ``remove`` waits for it.

        Raises:
            NoEffect: it had none.
            StratosError: its pod does not answer.
        """
        if not self.namespace:
            await self.make()
        if node not in self._images:
            raise NoEffect(f"there is no pod of this run on {node}, which came later")
        running = asyncio.create_task(self._run(node, task, in_effect))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    async def remove(self) -> None:
        """All of them, once their programs have undone what they did.

        Raises:
            StratosError: the namespace is left.
        """
        await asyncio.gather(*self._running, return_exceptions=True)
        name, self.namespace = self.namespace, ""
        try:
            if name:
                await self._api.call("DELETE", f"/api/v1/namespaces/{name}")
        except NotFound:  # another one was faster
            return
        except StratosError as error:
            raise DependencyDown(f"delete the namespace {name} yourself: {error.message}") from error

    async def _run(self, node: str, task: Mapping[str, Any], in_effect: asyncio.Event) -> Proof:
        async for line in run_python(self._api, self._path(node), self._program, task):
            if "proof" in line:
                return dict(line["proof"])
            if "no_effect" in line:
                raise NoEffect(line["no_effect"])
            in_effect.set()
        raise NoEffect("its program ended without a word")

    def _path(self, node: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{_name(node)}"

    async def _make(self, node: str) -> None:
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        end_s = time.monotonic() + READY_S
        while True:
            try:
                await self._api.call("POST", pods, _pod(node, self._images[node]))
                break
            except StratosError as error:  # the default account of a namespace comes a moment later
                if "serviceaccount" not in error.message or time.monotonic() > end_s:
                    raise
            await asyncio.sleep(POLL_S)
        while (status := (await self._api.call("GET", self._path(node)))["status"]).get("phase") != "Running":
            if time.monotonic() > end_s or status.get("phase") == "Failed":
                raise DependencyDown(f"the pod on {node} does not start: {status}")
            await asyncio.sleep(POLL_S)


def _name(node: str) -> str:
    return f"at-{node}"[:63].rstrip("-.")


def _pod(node: str, image: str) -> Object:
    container = {
        "name": "chaos", "image": image, "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", "import signal; signal.sigwait([signal.SIGTERM])"],
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
    }  # fmt: skip
    spec = {
        "nodeName": node, "containers": [container], "hostPID": True, "hostNetwork": True, "restartPolicy": "Never",
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": LONGEST_RUN_S, "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _name(node)}, "spec": spec}
