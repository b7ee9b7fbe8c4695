"""Deployments of workers and their pods: how many there should be, which there are, who leaves first."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from stratos.common.errors import NotFound, Overloaded
from stratos.core.placement import WorkerRole
from stratos_autoscaler.kubernetes.api import MERGE_PATCH, ApiServer, Object
from stratos_autoscaler.kubernetes.informer import Informer
from stratos_autoscaler.kubernetes.settings import KubernetesConfig

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MODEL_DIGEST = "stratosserve.io/model-digest"
MODEL_REVISION = "stratosserve.io/model-digest-revision"
"""That the Deployment had when the digest was seen."""
REVISION = "deployment.kubernetes.io/revision"
"""Of the pods' template, counted by Kubernetes."""
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
    is_changed: bool
    """Its pods are made from another template than those that were seen."""


class Workloads:
    """Belongs to the event loop.  What is read was watched; every call raises ``StratosError``.

    Args:
        api: of the cluster.
        config: which pods and Deployments are the release's.
        check: called right before every write; raises where this process may not.
    """

    def __init__(self, api: ApiServer, config: KubernetesConfig, check: Callable[[], Awaitable[None]]) -> None:
        self._api = api
        self._config = config
        self._check = check
        self._pods_path = f"/api/v1/namespaces/{config.namespace}/pods"
        self._deployments_path = f"/apis/apps/v1/namespaces/{config.namespace}/deployments"
        self.watched_pods = Informer(api, self._pods_path, config.pod_selector)
        self.watched_deployments = Informer(api, self._deployments_path, config.pod_selector)
        self._lock = asyncio.Lock()

    def pods(self) -> tuple[Pod, ...]:
        """Every worker's pod that has not ended."""
        found = self.watched_pods.objects()
        return tuple(_pod(item) for item in found if item["status"].get("phase") not in ("Succeeded", "Failed"))

    def sizes(self) -> dict[str, Size]:
        """How many pods each Deployment of workers should have."""
        return {item["metadata"]["name"]: _size(item) for item in self.watched_deployments.objects()}

    def deployments(self) -> Collection[Object]:
        """Every Deployment of workers."""
        return self.watched_deployments.objects()

    async def change(self, deployment: str, step: int) -> int:
        """Add ``step`` to what a Deployment should have, through its scale; returns what it is then.

        Raises:
            NotFound: there is no such Deployment.
            Overloaded: other writers were quicker, again and again.
        """
        path = f"{self._deployments_path}/{deployment}/scale"
        async with self._lock:
            for _ in range(TRIES):
                scale = await self._api.read(path)
                if scale is None:
                    raise NotFound(f"there is no Deployment {deployment} in namespace {self._config.namespace}")
                wanted = max(0, int(scale["spec"].get("replicas", 0)) + step)
                scale["spec"]["replicas"] = wanted
                await self._check()
                # Refused unless it is the version that was read.
                status, changed = await self._api.call("PUT", path, scale)
                if status < 300:
                    self._show_scale(deployment, wanted, changed)
                    return wanted
        raise Overloaded(f"the scale of {deployment} is being changed by others")

    async def mark(self, costs: Mapping[str, int]) -> None:
        """Say which pods leave first: those with the smallest cost."""
        for name, cost in costs.items():
            changed = await self._patch(f"{self._pods_path}/{name}", {DELETION_COST: str(cost)})
            self.watched_pods.put(name, changed)

    async def note_model(self, deployment: str, digest: str) -> None:
        """Remember at a Deployment which model its pods serve: at zero no pod shows it."""
        known = self.watched_deployments.known(deployment) or {"metadata": {}}
        revision = (known["metadata"].get("annotations") or {}).get(REVISION, "")
        noted = {MODEL_DIGEST: digest, MODEL_REVISION: revision}
        changed = await self._patch(f"{self._deployments_path}/{deployment}", noted)
        self.watched_deployments.put(deployment, changed)

    async def _patch(self, path: str, annotations: Mapping[str, str]) -> Object:
        """The object as it is then; nothing where it is gone."""
        await self._check()
        body: Object = {"metadata": {"annotations": dict(annotations)}}
        status, changed = await self._api.call("PATCH", path, body, content_type=MERGE_PATCH)
        return changed if status < 300 else {}

    def _show_scale(self, deployment: str, replicas: int, scale: Object) -> None:
        """A scale has the version of its Deployment."""
        known = self.watched_deployments.known(deployment)
        if known is not None:
            metadata = {**known["metadata"], "resourceVersion": scale["metadata"]["resourceVersion"]}
            spec = {**known["spec"], "replicas": replicas}
            self.watched_deployments.put(deployment, {"metadata": metadata, "spec": spec})


def role_of(found: Object) -> WorkerRole | None:
    """Role of the workers that an object is of, by its label; ``None`` of other objects."""
    component = (found["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return next((role for role in WorkerRole if component == f"{role.value}-worker"), None)


def conditions_of(found: Object) -> Mapping[str, Object]:
    """Conditions of an object's status, by type."""
    return {entry["type"]: entry for entry in (found.get("status") or {}).get("conditions") or ()}


def _size(item: Object) -> Size:
    annotations = item["metadata"].get("annotations") or {}
    return Size(
        replicas=int(item["spec"].get("replicas", 1)),
        model_digest=annotations.get(MODEL_DIGEST, ""),
        is_changed=annotations.get(REVISION, "") != annotations.get(MODEL_REVISION, ""),
    )


def _pod(item: Object) -> Pod:
    metadata, status = item["metadata"], item["status"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    cost = annotations.get(DELETION_COST, "0")
    return Pod(
        name=metadata["name"],
        component=labels.get(COMPONENT_LABEL, ""),
        model_name=labels.get(MODEL_LABEL, ""),
        address=status.get("podIP", ""),
        is_ready=(conditions_of(item).get("Ready") or {}).get("status") == "True",
        is_leaving="deletionTimestamp" in metadata,
        deletion_cost=int(cost) if cost.lstrip("-").isdigit() else 0,
        age_s=_age_s(metadata.get("creationTimestamp")),
    )


def _age_s(created: str | None) -> float:
    """The API server's clock made it, so it is right within the difference of two clocks: enough for minutes."""
    if not created:
        return 0.0
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(created)).total_seconds()
