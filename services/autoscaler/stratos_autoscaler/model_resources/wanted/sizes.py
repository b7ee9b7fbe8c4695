"""Sizes of a Model's pools, put into the objects that the chart rendered with those of the template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from stratos.core.placement import WorkerRole
from stratos.planning.settings import ScalingMode
from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.kubernetes.noted_pools import POOL
from stratos_autoscaler.kubernetes.workloads import role_of
from stratos_autoscaler.model_resources.wanted.spec import ModelSpec, PoolSize, RefusedModel, StatusReason

SPEC_REPLICAS = "stratosserve.io/spec-replicas"
"""Replicas that the Model asked for when they were written last: another size was given through the scale."""


def sized(objects: Iterable[Object], spec: ModelSpec) -> list[Object]:
    """The objects with the Model's sizes, without those of pools that it leaves out.

    Raises:
        RefusedModel: sizes that the template does not allow.
    """
    made, bounds = list(objects), _bounds(objects)
    for role, size in spec.sizes.items():
        if role not in bounds and size != PoolSize() and not size.is_off:
            raise _refused(role, f"template {spec.template!r} has no {role.value} pool")
    left = {role for role in bounds if not spec.sizes.get(role, PoolSize()).is_off}
    if not left:
        raise RefusedModel(StatusReason.INVALID_SPEC, "both pools are left out")
    said = {role: _checked(role, spec.sizes.get(role, PoolSize()), bounds[role]) for role in left}
    return [_with_size(found, said) for found in made if role_of(found) is None or role_of(found) in left]


def _bounds(objects: Iterable[Object]) -> dict[WorkerRole, dict[str, Any]]:
    found = {}
    for item in objects:
        role = role_of(item)
        if role is not None and item["kind"] == "Deployment":
            found[role] = json.loads(item["metadata"]["annotations"][POOL])
    return found


def _checked(role: WorkerRole, size: PoolSize, bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds of the pool with the Model's numbers."""
    mode, floor = bounds["mode"], int(bounds["floor"])
    if mode == ScalingMode.NONE:
        if (size.minimum, size.maximum) != (None, None):
            raise _refused(role, "minReplicas and maxReplicas: the template scales no pool of this role; give replicas")
        least = most = int(bounds["min_workers"]) if size.replicas is None else size.replicas
    else:
        if size.replicas is not None:
            raise _refused(role, f"replicas: the size is {mode}'s; give minReplicas and maxReplicas")
        least = int(bounds["min_workers"]) if size.minimum is None else size.minimum
        most = int(bounds["max_workers"]) if size.maximum is None else size.maximum
        if not least and bounds["min_workers"]:
            raise _refused(role, "minReplicas: 0 needs a template with minReplicas 0, for which gateways wait")
    if least > most:
        raise _refused(role, f"minReplicas: {least} is above maxReplicas ({most})")
    if floor and least <= floor:
        raise _refused(role, f"{least} workers must be more than the template's floor ({floor})")
    return {**bounds, "min_workers": least, "max_workers": most}


def _with_size(found: Object, said: Mapping[WorkerRole, dict[str, Any]]) -> Object:
    role = role_of(found)
    if role is None or found["kind"] not in ("Deployment", "HorizontalPodAutoscaler"):
        return found
    bounds, spec, metadata = said[role], dict(found["spec"]), dict(found["metadata"])
    if found["kind"] == "HorizontalPodAutoscaler":
        spec |= {"minReplicas": max(1, bounds["min_workers"]), "maxReplicas": bounds["max_workers"]}
        return {**found, "spec": spec}
    notes = {**metadata["annotations"], POOL: json.dumps(bounds, sort_keys=True, separators=(",", ":"))}
    spec.pop("replicas", None)  # of a pool that has an owner, this is the owner's
    if bounds["mode"] == ScalingMode.NONE:
        spec["replicas"] = bounds["min_workers"]
        notes[SPEC_REPLICAS] = str(bounds["min_workers"])
    return {**found, "metadata": {**metadata, "annotations": notes}, "spec": spec}


def _refused(role: WorkerRole, why: str) -> RefusedModel:
    return RefusedModel(StatusReason.INVALID_SPEC, f"spec.{role.value}: {why}")
