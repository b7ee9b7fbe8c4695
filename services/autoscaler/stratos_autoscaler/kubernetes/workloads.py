"""Deployments of workers and their pods: how many there should be, which there are, who leaves first."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from stratos.common.errors import NotFound, Overloaded
from stratos_autoscaler.kubernetes.api import CONFLICT, MERGE_PATCH, ApiServer, Object
from stratos_autoscaler.kubernetes.settings import KubernetesConfig

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MODEL_DIGEST = "stratosserve.io/model-digest"
FIRST_TO_LEAVE = -(2**31) + 1
MODEL_LABEL, COMPONENT_LABEL = "stratosserve.io/model", "app.kubernetes.io/component"
TRIES = 3
"""Attempts to change the scale, when another writer was quicker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a worker that has not ended."""

    name: str
    component: str
    model_name: str
    address: str
    """IP of the pod; empty before it has one."""
    is_ready: bool
    is_leaving: bool
    deletion_cost: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a Deployment, as its object has it."""

    replicas: int
    model_digest: str
    """That its pods were seen to serve; empty when that was never seen."""


class Workloads:
    """Belongs to the event loop; every call raises like ``ApiServer.call``.

    Args:
        api: of the cluster.
        config: which pods are the release's.
    """

    def __init__(self, api: ApiServer, config: KubernetesConfig) -> None:
        self._api = api
        self._config = config
        self._pods = f"/api/v1/namespaces/{config.namespace}/pods"
        self._deployments = f"/apis/apps/v1/namespaces/{config.namespace}/deployments"
        self._lock = asyncio.Lock()

    async def pods(self) -> tuple[Pod, ...]:
        """Every worker's pod that has not ended."""
        found = await self._api.read(self._pods, params={"labelSelector": self._config.pod_selector})
        items = (found or {}).get("items") or []
        return tuple(_pod(item) for item in items if item["status"].get("phase") not in ("Succeeded", "Failed"))

    async def size(self, deployment: str) -> Size:
        """How many pods a Deployment should have.

        Raises:
            NotFound: there is no such Deployment.
        """
        found = await self._api.read(f"{self._deployments}/{deployment}")
        if found is None:
            raise NotFound(f"there is no Deployment {deployment} in namespace {self._config.namespace}")
        annotations = found["metadata"].get("annotations") or {}
        replicas = found["spec"].get("replicas", 1)
        return Size(replicas=int(replicas), model_digest=annotations.get(MODEL_DIGEST, ""))

    async def change(self, deployment: str, step: int) -> int:
        """Add ``step`` to what a Deployment should have, through its scale; returns what it is then.

        Raises:
            Overloaded: other writers were quicker, again and again.
        """
        path = f"{self._deployments}/{deployment}/scale"
        async with self._lock:
            for _ in range(TRIES):
                scale = await self._api.read(path)
                if scale is None:
                    raise NotFound(f"there is no Deployment {deployment} in namespace {self._config.namespace}")
                wanted = max(0, int(scale["spec"].get("replicas", 0)) + step)
                scale["spec"]["replicas"] = wanted
                status, _ = await self._api.call("PUT", path, scale)  # refused unless it is the version that was read
                if status != CONFLICT:
                    return wanted
        raise Overloaded(f"the scale of {deployment} is being changed by others")

    async def mark(self, costs: Mapping[str, int]) -> None:
        """Say which pods leave first: those with the smallest cost."""
        for name, cost in costs.items():
            body: Object = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
            await self._api.call("PATCH", f"{self._pods}/{name}", body, content_type=MERGE_PATCH)

    async def note_model(self, deployment: str, digest: str) -> None:
        """Remember at a Deployment which model its pods serve: at zero no pod shows it."""
        body: Object = {"metadata": {"annotations": {MODEL_DIGEST: digest}}}
        await self._api.call("PATCH", f"{self._deployments}/{deployment}", body, content_type=MERGE_PATCH)


def _pod(item: Object) -> Pod:
    metadata, status = item["metadata"], item["status"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    cost = annotations.get(DELETION_COST, "0")
    return Pod(
        name=metadata["name"],
        component=labels.get(COMPONENT_LABEL, ""),
        model_name=labels.get(MODEL_LABEL, ""),
        address=status.get("podIP", ""),
        is_ready=conditions.get("Ready") == "True",
        is_leaving="deletionTimestamp" in metadata,
        deletion_cost=int(cost) if cost.lstrip("-").isdigit() else 0,
        age_s=_age_s(metadata.get("creationTimestamp")),
    )


def _age_s(created: str | None) -> float:
    """The API server's clock made it, so it is right within the difference of two clocks: enough for minutes."""
    if not created:
        return 0.0
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(created)).total_seconds()
