"""Models as objects of the cluster: the chart renders for those to come what it renders for an entry of models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.core.placement import WorkerRole
from stratos_autoscaler.kubernetes.noted_pools import POOL
from stratos_autoscaler.model_resources.wanted.objects import APPLIED, ModelObjects, wanted_objects
from stratos_autoscaler.model_resources.wanted.sizes import SPEC_REPLICAS
from stratos_autoscaler.model_resources.wanted.spec import RefusedModel, read_spec
from stratos_autoscaler.model_resources.wanted.templates import Templates, read_templates
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
DIGEST = "d" * 64
BASE: dict[str, Any] = {"name": "base", "source": {"claim": {"name": "base"}}}
RECORD = "stratosserve.io/record"
"""Of entries of the values alone: the autoscaler notes what it recorded in a Model's status."""
ALL_SOURCES = ["objectStore", "registry", "claim", "image", "imageVolume"]
POOLS: dict[str, Any] = {
    "prefill": {"autoscaling": {"mode": "planner", "minReplicas": 0}},
    "decode": {
        "gpu": {"count": 2, "sharing": "mps"},
        "scheduling": {"nodeSelector": {"disk": "fast"}},
        "config": {"scheduler": {"maxNumSeqs": 4}},
        "floor": 1,
        "autoscaling": {"minReplicas": 2},
        "sidecars": [],
    },
}
SHORT_PAIRS = {"config": {"transport": {"idlePairS": 5}}}
SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "objectStore": ({"prefix": "models/small", "digest": DIGEST}, {"prefix": "models/small", "digest": DIGEST}),
    "registry": ({"name": "team/small", "digest": "e" * 64}, {"name": "team/small", "digest": "e" * 64}),
    "claim": ({"name": "disk", "path": "/a/b/"}, {"name": "disk", "path": "a/b"}),
    "claim without a folder": ({"name": "disk"}, {"name": "disk"}),
    "image": (
        {"repository": "hub/small", "tag": "7", "path": "/weights"},
        {"reference": "hub/small:7", "path": "/weights"},
    ),
    "imageVolume": ({"repository": "hub/small", "tag": "7", "path": "in"}, {"reference": "hub/small:7", "path": "in"}),
    "imageVolume without a folder": ({"repository": "hub/small", "tag": "7"}, {"reference": "hub/small:7"}),
}
"""As an entry of models says it, and as a Model does."""


def model_of(spec: dict[str, Any], name: str = "small") -> Object:
    return {"metadata": {"name": name, "uid": "u1", "generation": 1}, "spec": spec}


def templates_of(objects: list[Object]) -> Templates:
    (name,) = [name for name in kinds(objects, "ConfigMap") if name.endswith("model-templates")]
    return read_templates(one(objects, "ConfigMap", name))


def made(objects: list[Object], spec: dict[str, Any], name: str = "small") -> ModelObjects:
    return wanted_objects(read_spec(model_of(spec, name)), templates_of(objects), "u1")


def plain(found: Object) -> Object:
    """Without what says whose an object is."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "ownerReferences"}
    notes = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (APPLIED, SPEC_REPLICAS, RECORD)}
    labels = {
        key: value
        for key, value in metadata["labels"].items()
        if key not in ("app.kubernetes.io/managed-by", "stratosserve.io/model-resource")
    }
    metadata |= {"labels": labels, "annotations": notes}
    return {**found, "metadata": metadata}


def values_with(models: list[dict[str, Any]], template: dict[str, Any]) -> dict[str, Any]:
    resources = {"enabled": True, "sources": ALL_SOURCES, "templates": {"default": template}}
    return {"models": models, "modelResources": resources, "networkPolicies": {"enabled": False}}


@pytest.mark.parametrize(
    ("release", "cases"),
    [("demo", list(SOURCES)), ("a-release-whose-name-is-as-long-as-helm-lets-it-be-53", ["claim"])],
)
def test_objects_of_a_model_are_those_of_an_entry_of_models(release: str, cases: list[str]) -> None:
    terms = {"size": "8b", "maxInputTokens": 128}
    names = {case: f"model-of-some-team-{number}" for number, case in enumerate(cases)}
    entries = [
        {"name": name, "servedName": f"team/{name}", "source": {case.partition(" ")[0]: SOURCES[case][0]},
         "terms": terms, **POOLS}
        for case, name in names.items()
    ]  # fmt: skip
    objects = rendered(values_with([BASE, *entries], POOLS), release=release, kube_version="1.35.0")
    for case in cases:
        source = {case.partition(" ")[0]: SOURCES[case][1]}
        spec = {"servedName": f"team/{names[case]}", "source": source, "terms": terms}
        wanted = made(objects, spec, names[case])
        assert [found["kind"] for found in wanted.objects].count("Deployment") == 2
        assert len(wanted.objects) == 5, "budgets of both pools, and the HPA of one"
        for found in wanted.objects:
            assert plain(found) == plain(one(objects, found["kind"], found["metadata"]["name"])), case
        (job,) = [o for n, o in kinds(objects, "Job").items() if f"model-{names[case]}" in n]
        owner = f"Model of stratos/{release}/{names[case]}"
        text = json.dumps(job["spec"], sort_keys=True).replace(f"values of stratos/{release}", owner)
        assert json.dumps(wanted.record["spec"], sort_keys=True) == text, case


def test_sizes_of_a_model_are_those_of_an_entry_with_them() -> None:
    entry = {
        "name": "small", "source": {"claim": {"name": "disk"}},
        "prefill": {"autoscaling": {"mode": "none"}, "replicas": 3},
        "decode": {"autoscaling": {"minReplicas": 4, "maxReplicas": 9}},
    }  # fmt: skip
    template = {"prefill": {"autoscaling": {"mode": "none"}, "replicas": 1}}
    objects = rendered(values_with([BASE, entry], template), kube_version="1.35.0")
    sizes = {"prefill": {"replicas": 3}, "decode": {"minReplicas": 4, "maxReplicas": 9}}
    wanted = made(objects, {"source": {"claim": {"name": "disk"}}, **sizes})
    for found in wanted.objects:
        assert plain(found) == plain(one(objects, found["kind"], found["metadata"]["name"]))
    off = made(objects, {"source": {"claim": {"name": "disk"}}, "prefill": {"replicas": 0}})
    assert {found["metadata"]["name"] for found in off.objects} == {"demo-decode-small"}
    for wrong in (
        {"decode": {"replicas": 3}},
        {"prefill": {"minReplicas": 1}},
        {"decode": {"minReplicas": 0}},
        {"decode": {"minReplicas": 11}},
        {"decode": {"replicas": 0}, "prefill": {"replicas": 0}},
    ):
        with pytest.raises(RefusedModel):
            made(objects, {"source": {"claim": {"name": "disk"}}, **wrong})


def test_nothing_of_it_is_there_until_it_is_asked_for() -> None:
    objects = checked({})
    assert not kinds(objects, "CustomResourceDefinition")
    assert [name for name in kinds(objects, "ConfigMap") if "model-templates" in name] == []
    rules = one(objects, "Role", "demo-autoscaler")["rules"]
    assert {group for rule in rules for group in rule["apiGroups"]} == {"apps", "", "coordination.k8s.io"}
    assert not any("MODEL_TEMPLATES" in name for name in variables(container(objects, "demo-autoscaler")))


def test_the_autoscaler_is_told_of_its_templates_and_may_do_what_it_does() -> None:
    objects = checked({"modelResources": {"enabled": True, "selector": "team=a"}})
    told = variables(container(objects, "demo-autoscaler"))
    assert told["STRATOS_AUTOSCALER_KUBERNETES__MODEL_TEMPLATES"] == "demo-model-templates"
    assert told["STRATOS_AUTOSCALER_KUBERNETES__MODEL_SELECTOR"] == "team=a"
    rules = one(objects, "Role", "demo-autoscaler")["rules"]
    by_name = {
        resource: rule.get("resourceNames")
        for rule in rules
        for resource in rule["resources"]
        if rule["apiGroups"] != ["apps"]
    }
    assert by_name["configmaps"] == ["demo-model-templates"]
    assert {"models", "models/status", "poddisruptionbudgets", "horizontalpodautoscalers", "jobs"} <= by_name.keys()
    (crd,) = kinds(objects, "CustomResourceDefinition").values()
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "STRATOS_ROUTER_QUEUE__WAKE_TIMEOUT_S" not in variables(container(objects, "demo-router"))


def test_pools_of_a_model_are_read_as_those_of_values_are() -> None:
    sleepy = {**POOLS, "decode": {"autoscaling": {"minReplicas": 0}}}
    objects = rendered({"modelResources": {"enabled": True, "crd": False, "templates": {"default": sleepy}}})
    wanted = made(objects, {"source": {"claim": {"name": "disk"}}})
    said = [json.loads(f["metadata"]["annotations"][POOL]) for f in wanted.objects if f["kind"] == "Deployment"]
    assert [(s["deployment"], s["model_name"], s["served_name"], s["mode"]) for s in said] == [
        ("demo-prefill-small", "small", "small", "planner"),
        ("demo-decode-small", "small", "small", "hpa"),
    ]
    assert {WorkerRole(s["role"]) for s in said} == set(WorkerRole)
    assert not kinds(objects, "CustomResourceDefinition"), "another release has it"
    assert "STRATOS_ROUTER_QUEUE__WAKE_TIMEOUT_S" in variables(container(objects, "demo-router")), (
        "its models may sleep"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"modelResources": {"enabled": True, "sources": ["imageVolume"]}}, "needs Kubernetes 1.35"),
        ({"modelResources": {"templates": {"x": {"decode": {"warmSpares": 1}}}}}, "warmSpares"),
        (
            {"modelResources": {"enabled": True, "templates": {"x": {"decode": SHORT_PAIRS}}}},
            "modelResources.templates.x.decode.config.transport.idlePairS",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(RenderError, match=said):
        rendered(values, kube_version="1.34.0")
