"""Models, their templates and their objects in the cluster: watched, and written by server-side apply.

Every write is preceded by a look at the lease.  An object that is not known yet is read first: one of the same name
that is not the Model's is never taken over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from stratos.common.errors import NotFound
from stratos_autoscaler.kubernetes.api import APPLY_PATCH, CONFLICT, MERGE_PATCH, ApiServer, Object
from stratos_autoscaler.kubernetes.informer import Informer
from stratos_autoscaler.kubernetes.settings import KubernetesConfig
from stratos_autoscaler.kubernetes.workloads import COMPONENT_LABEL, MODEL_LABEL, Workloads
from stratos_autoscaler.model_resources.observed import JOB_NAME, ObservedModel
from stratos_autoscaler.model_resources.steps import Apply, Delete, Finalize, Step
from stratos_autoscaler.model_resources.wanted.objects import MANAGER, MODEL_RESOURCE, is_owned
from stratos_autoscaler.model_resources.wanted.spec import GROUP, PLURAL, VERSION, RefusedModel, StatusReason
from stratos_autoscaler.model_resources.wanted.templates import Templates, read_templates

_log = logging.getLogger(__name__)


class ModelCluster:
    """Belongs to the event loop.  What is read was watched; every call raises ``StratosError``.

    Args:
        api: of the cluster.
        config: which Models and templates are the release's.
        workloads: its Deployments and pods, which are watched already.
        check: called right before every write; raises where this process may not.
    """

    def __init__(
        self, api: ApiServer, config: KubernetesConfig, workloads: Workloads, check: Callable[[], Awaitable[None]]
    ) -> None:
        self._api = api
        self._name = config.model_templates
        self._workloads = workloads
        self._check = check
        core, where = "/api/v1", f"namespaces/{config.namespace}"
        self._models_path = f"/apis/{GROUP}/{VERSION}/{where}/{PLURAL}"
        self._paths = {
            "Deployment": f"/apis/apps/v1/{where}/deployments",
            "PodDisruptionBudget": f"/apis/policy/v1/{where}/poddisruptionbudgets",
            "HorizontalPodAutoscaler": f"/apis/autoscaling/v2/{where}/horizontalpodautoscalers",
            "Job": f"/apis/batch/v1/{where}/jobs",
        }
        release = f"app.kubernetes.io/instance={config.release}," if config.release else ""
        self._models = Informer(api, self._models_path, config.model_selector)
        self._templates = Informer(api, f"{core}/{where}/configmaps", "", self._name)
        self._job_pods = Informer(api, f"{core}/{where}/pods", f"{release}{JOB_NAME}")
        self._owned = {
            kind: Informer(api, path, MODEL_RESOURCE) for kind, path in self._paths.items() if kind != "Deployment"
        }
        self._read: Templates | None = None

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Watches beside those of the workloads."""
        own = {"models": self._models, "model-templates": self._templates, "model-job-pods": self._job_pods}
        own |= {f"model-{kind.lower()}s": informer for kind, informer in self._owned.items()}
        return {f"watched-{name}": informer.run() for name, informer in own.items()}

    def models(self) -> Collection[Object]:
        """All Models, those that leave included; raises while any of what belongs to them is not known."""
        for informer in (*self._owned.values(), self._job_pods, self._workloads.watched_pods):
            informer.objects()
        self._workloads.deployments()
        return list(self._models.objects())

    def templates(self) -> Templates:
        """The chart's objects as they are now; raises ``NotFound`` where there are none."""
        found = next(iter(self._templates.objects()), None)
        if found is None:
            raise NotFound(f"there is no ConfigMap {self._name}")
        if self._read is None or self._read.version != found["metadata"].get("resourceVersion"):
            self._read = read_templates(found)
        return self._read

    def observed(self, model: Object) -> ObservedModel:
        """Objects and pods that there are of a Model."""
        name, uid = model["metadata"]["name"], model["metadata"]["uid"]
        all_of = {"Deployment": self._workloads.deployments()}
        all_of |= {kind: informer.objects() for kind, informer in self._owned.items()}
        objects = {
            (kind, found["metadata"]["name"]): found
            for kind, items in all_of.items()
            for found in items
            if is_owned(found, uid)
        }
        jobs = {its for kind, its in objects if kind == "Job"}
        # The values may have the name by now: then pods of that role are theirs.
        others = {_role_of(found) for found in all_of["Deployment"] if _is_of(found, name) and not is_owned(found, uid)}
        return ObservedModel(
            objects=objects,
            pods=[
                pod
                for pod in self._workloads.watched_pods.objects()
                if _is_of(pod, name) and _role_of(pod) not in others and not _has_ended(pod)
            ],
            job_pods=[pod for pod in self._job_pods.objects() if _labels(pod).get(JOB_NAME) in jobs],
        )

    async def write(self, step: Step, model: Object) -> None:
        """One write; a conflict leaves it to the next turn.

        Raises:
            RefusedModel: another one's object has the name.
        """
        if isinstance(step, Apply):
            await self._apply(step, model["metadata"]["uid"])
        elif isinstance(step, Delete):
            await self._delete(step)
        else:
            await self._finalize(step, model["metadata"]["name"])

    async def write_status(self, name: str, status: Object) -> None:
        """Say how a Model stands; one that is gone, or was changed since, is left."""
        await self._change(name, f"{self._models_path}/{name}/status", {"status": status})

    async def _apply(self, step: Apply, uid: str) -> None:
        kind, name = step.item["kind"], step.item["metadata"]["name"]
        path, body = f"{self._paths[kind]}/{name}", step.item
        if step.version:
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": step.version}}
        elif (live := await self._api.read(path)) is not None:
            if not is_owned(live, uid):
                raise RefusedModel(StatusReason.NAME_TAKEN, f"there is a {kind} {name} that is not of this Model")
            return  # the watch has not told of it yet
        await self._check()
        params = {"fieldManager": MANAGER, "force": "true"}
        status, _ = await self._api.call("PATCH", path, body, params=params, content_type=APPLY_PATCH)
        _log.info("%s %s %s", kind, name, "was changed by others at once" if status == CONFLICT else "is applied")

    async def _delete(self, step: Delete) -> None:
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if step.is_foreground else "Background",
            "preconditions": {"uid": step.uid},
        }
        await self._check()
        await self._api.call("DELETE", f"{self._paths[step.kind]}/{step.name}", body)
        _log.info("%s %s goes", step.kind, step.name)

    async def _finalize(self, step: Finalize, name: str) -> None:
        body: Object = {"metadata": {"finalizers": list(step.finalizers)}}
        await self._change(name, f"{self._models_path}/{name}", body)

    async def _change(self, name: str, path: str, body: Object) -> None:
        """Change a Model of the version that was seen."""
        known = self._models.known(name)
        if known is None:
            return
        metadata = {**body.get("metadata", {}), "resourceVersion": known["metadata"]["resourceVersion"]}
        await self._check()
        status, changed = await self._api.call("PATCH", path, {**body, "metadata": metadata}, content_type=MERGE_PATCH)
        if status < 300:
            self._models.put(name, changed)


def _is_of(found: Object, name: str) -> bool:
    return bool(_labels(found).get(MODEL_LABEL) == name)


def _role_of(found: Object) -> str:
    return _labels(found).get(COMPONENT_LABEL, "")


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _labels(found: Object) -> Mapping[str, str]:
    return found["metadata"].get("labels") or {}
