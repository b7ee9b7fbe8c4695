"""Models of a cluster and the chart's objects for them, cut down to what the autoscaler looks at."""

from __future__ import annotations

import json
from typing import Any

from stratos_autoscaler.kubernetes.noted_pools import POOL
from stratos_autoscaler.model_resources.plan import FINALIZER
from stratos_autoscaler.model_resources.wanted.objects import ModelObjects, wanted_objects
from stratos_autoscaler.model_resources.wanted.spec import read_spec
from stratos_autoscaler.model_resources.wanted.templates import FORMAT, Templates, read_templates

Object = dict[str, Any]
SOURCE: Object = {"objectStore": {"prefix": "models/chat", "digest": "a" * 64}}
OTHER_SOURCE: Object = {"objectStore": {"prefix": "models/chat", "digest": "b" * 64}}
NAME = "model-templates"


def model(name: str = "chat", *, generation: int = 1, is_ours: bool = True, **spec: Any) -> Object:
    """A Model that was taken up, or one that is new."""
    metadata: Object = {"name": name, "uid": f"uid-of-{name}", "generation": generation, "resourceVersion": "1"}
    if is_ours:
        metadata["finalizers"] = [FINALIZER]
    return {"metadata": metadata, "spec": {"source": SOURCE, **spec}}


def pool(role: str, *, mode: str = "hpa", **changes: Any) -> list[Object]:
    """Deployment, budget and HPA of a role."""
    name = f"__NAME_{role}-__MODEL____"
    labels = {"app.kubernetes.io/component": f"{role}-worker", "stratosserve.io/model": "__MODEL__"}
    bounds = {
        "deployment": name, "floor": 0, "max_workers": 10, "min_workers": 1, "mode": mode, "model_name": "__MODEL__",
        "role": role, "served_name": "__SERVED_NAME__", **changes,
    }  # fmt: skip
    template = {"spec": {"containers": [{"name": "worker", "args": ["__PREFIX__", "__DIGEST__", "__CACHE_FOLDER__"]}]}}
    metadata: Object = {"name": name, "labels": labels}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": template},
        "metadata": {**metadata, "annotations": {POOL: json.dumps(bounds)}},
    }  # fmt: skip
    made = [deployment, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": {}}]
    if mode == "hpa":
        spec = {"minReplicas": 1, "maxReplicas": 10}
        made.append(
            {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
        )
    return made


def job(name: str, *command: str) -> Object:
    labels = {"app.kubernetes.io/component": "tools"}
    container = {"name": "record", "command": list(command)}
    spec = {"backoffLimit": 30, "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


def config_map(**templates: list[Object]) -> Object:
    """The chart's ConfigMap: template ``default`` has both pools scaled by HPAs."""
    record = job(
        "__NAME_model-__MODEL__-0__", "record-model", "__SERVED_NAME__", "--owner=__OWNER__", "--terms=__TERMS__",
        "--digest=__DIGEST__",
    )  # fmt: skip
    made = templates or {"default": [*pool("prefill"), *pool("decode")]}
    facts = {
        "format": FORMAT, "head": "demo", "owner": "Model of stratos/demo",
        "names": ["base"], "served_names": ["team/base"],
        "pools": ["decode-base", "decode-base-fast"], "terms": {"maxInputTokens": "max_input_tokens"},
    }  # fmt: skip
    retire = job("__NAME_retire-__MODEL__-0__", "retire-models", "--owner=__OWNER__")
    data = {f"template.{name}.objectStore": json.dumps([*found, record]) for name, found in made.items()}
    data |= {"facts": json.dumps(facts), "retire": json.dumps([retire])}
    return {"metadata": {"name": NAME}, "data": data}


def templates_with(**templates: list[Object]) -> Templates:
    return read_templates(config_map(**templates))


def wanted_of(found: Object, templates: Templates) -> ModelObjects:
    return wanted_objects(read_spec(found), templates, found["metadata"]["uid"])
