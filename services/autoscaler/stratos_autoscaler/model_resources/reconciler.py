"""The loop over Models: look, plan, write, say how it stands; once a second, by the autoscaler that holds the lease."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from stratos.common.errors import BadRequest, DependencyDown, PermissionDenied, StratosError
from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.kubernetes.lease import ClusterLease
from stratos_autoscaler.metrics import AutoscalerMetrics
from stratos_autoscaler.model_resources.cluster import ModelCluster
from stratos_autoscaler.model_resources.drains import Drains
from stratos_autoscaler.model_resources.observed import ObservedModel
from stratos_autoscaler.model_resources.plan import (
    FINALIZER,
    ModelPlan,
    check_names,
    is_retired,
    plan_end,
    plan_life,
    plan_refusal,
)
from stratos_autoscaler.model_resources.status import is_same, status_of
from stratos_autoscaler.model_resources.steps import Finalize
from stratos_autoscaler.model_resources.wanted.objects import ModelObjects, wanted_objects
from stratos_autoscaler.model_resources.wanted.spec import ModelSpec, RefusedModel, StatusReason, read_spec
from stratos_autoscaler.model_resources.wanted.templates import Templates

_log = logging.getLogger(__name__)
TURN_S = 1.0
STATES = ("Ready", "Loading", "Failed", "Leaving")
_REFUSALS = (BadRequest, PermissionDenied, DependencyDown)
"""Answers of the API server that concern one Model; that another autoscaler holds the lease concerns all."""


class ModelReconciler:
    """Belongs to the event loop.

    Args:
        cluster: reads and writes.
        lease: whose holder acts.
        drains: of Models that leave.
        metrics: show Models by state.
    """

    def __init__(self, cluster: ModelCluster, lease: ClusterLease, drains: Drains, metrics: AutoscalerMetrics) -> None:
        self._cluster = cluster
        self._lease = lease
        self._drains = drains
        self._shown = metrics.model_resources
        self._wanted: dict[str, tuple[tuple[int, str], ModelObjects]] = {}
        """By uid, with the generation and the version of the templates that it is of."""
        self._problem = ""
        self._stuck: dict[str, str] = {}
        """What was said last of Models that could not be looked after."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """The loop, and its watches."""
        return {"model-resources": self.run(), **self._cluster.tasks()}

    async def run(self) -> None:
        """Root task: until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(TURN_S)

    async def turn(self) -> None:
        """One look at every Model; without the lease, or without the API server, nothing happens."""
        problem = ""
        try:
            if self._lease.is_ours():
                await self._all(self._cluster.templates(), self._cluster.models())
            else:
                self._shown.clear()
        except StratosError as error:
            problem = error.message
        if problem and problem != self._problem:
            _log.warning("Models stay as they are: %s", problem)
        self._problem = problem

    async def _all(self, templates: Templates, models: Any) -> None:
        states: Counter[str] = Counter()
        served: dict[str, str] = {}
        stuck: dict[str, str] = {}
        for model in sorted(models, key=_age):
            if not self._lease.is_ours():
                return
            try:
                status = await self._one(model, templates, served)
            except _REFUSALS as error:  # others go on, as long as the lease is held
                name = model["metadata"]["name"]
                stuck[name] = error.message
                states["Failed"] += 1
                if self._stuck.get(name) != error.message:
                    _log.warning("Model %s stays as it is: %s", name, error.message)
                continue
            states[str(status.get("state", ""))] += 1
        for state in STATES:
            self._shown.labels(state).set(states[state])
        self._stuck = stuck
        uids = {model["metadata"]["uid"] for model in models}
        self._wanted = {uid: found for uid, found in self._wanted.items() if uid in uids}
        self._drains.keep(uids)

    async def _one(self, model: Object, templates: Templates, served: dict[str, str]) -> Object:
        """One Model; returns its status. ``served`` gets the name that it serves."""
        observed = self._cluster.observed(model)
        name = model["metadata"]["name"]
        if "deletionTimestamp" in model["metadata"]:
            if FINALIZER not in (model["metadata"].get("finalizers") or ()):
                return {"state": "Leaving"}
            if is_retired(model, templates, observed):
                digest = str((model.get("status") or {}).get("digest") or "")
                observed = await self._drains.look(model["metadata"]["uid"], observed, digest)
            plan = plan_end(model, templates, observed)
        else:
            plan = self._life(model, templates, observed, served)
        if held := plan.story.served_name or str((model.get("status") or {}).get("servedName") or ""):
            served.setdefault(held, name)
        plan = await self._write(plan, model)
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = status_of(model, plan.story, observed, stamp)
        is_gone = any(isinstance(step, Finalize) and FINALIZER not in step.finalizers for step in plan.steps)
        if not is_gone and not is_same(status, model.get("status") or {}):
            await self._cluster.write_status(name, status)
        return status

    def _life(
        self, model: Object, templates: Templates, observed: ObservedModel, served: Mapping[str, str]
    ) -> ModelPlan:
        try:
            spec = read_spec(model)
            check_names(spec, templates, served)
            wanted = self._wanted_of(model, spec, templates)
        except RefusedModel as refused:
            return plan_refusal(model, refused)
        return plan_life(model, spec, wanted, templates.head, observed)

    def _wanted_of(self, model: Object, spec: ModelSpec, templates: Templates) -> ModelObjects:
        """Filled once for what a Model and the templates say."""
        uid, key = model["metadata"]["uid"], (int(model["metadata"].get("generation", 0)), templates.version)
        known = self._wanted.get(uid)
        if known is None or known[0] != key:
            known = self._wanted[uid] = (key, wanted_objects(spec, templates, uid))
        return known[1]

    async def _write(self, plan: ModelPlan, model: Object) -> ModelPlan:
        """Do what was planned; what is refused of it becomes what is said."""
        try:
            for step in plan.steps:
                await self._cluster.write(step, model)
        except RefusedModel as refused:
            return plan_refusal(model, refused, plan.story.leaving)
        except _REFUSALS as error:
            return plan_refusal(model, RefusedModel(StatusReason.APPLY_REFUSED, error.message), plan.story.leaving)
        return plan


def _age(model: Object) -> tuple[str, str]:
    return str(model["metadata"].get("creationTimestamp", "")), str(model["metadata"]["name"])
