"""Renderings for tools that apply them: equal bytes, objects that may be applied again, no need of one cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from scripts.chart.rendering import NO_RENDERER, has_renderer, rendered_text
from tests.support.kube.chart_objects import Object, container, kinds, one, pods, variables
from tests.support.kube.chart_rendering import SERVED_HERE, checked, said_by
from tests.support.kube.cluster.release import LIMITS

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
ADMINISTERED = {"gateway": {"admin": {"enabled": True}}, "declaration": {"tenants": {"acme": {"plan": "gold"}}}}
SHIPPED: dict[str, Any] = {"name": "base", "servedName": "base", "source": {"image": {"name": "model-demo"}}}
HOOK = "helm.sh/hook"
KEEP = "helm.sh/resource-policy"


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return checked({})


@pytest.mark.parametrize("values", [{}, ADMINISTERED, {"mtls": {"source": "certManager"}}])
def test_rendering_twice_gives_equal_bytes(values: dict[str, Any]) -> None:
    first, second = (rendered_text({**SERVED_HERE, **values}, release="demo", namespace="stratos") for _ in range(2))
    assert first == second
    assert "kind: Secret\n" not in first, "no secret is made at render time"


def jobs(objects: list[Object]) -> dict[str, Object]:
    """Those that are no hooks, by the head of their names."""
    found = [o for o in kinds(objects, "Job").values() if "annotations" not in o["metadata"]]
    return {re.sub("-[0-9a-f]{10}$", "", o["metadata"]["name"]): o for o in found}


def test_a_job_is_named_by_what_it_does(defaults: list[Object]) -> None:
    made = ("credentials", "certificates", "init-store", "model-base", "models")
    assert set(jobs(defaults)) == {f"demo-{name}" for name in made}
    assert {job["spec"]["ttlSecondsAfterFinished"] for job in jobs(defaults).values()} == {86400}
    unchanged = jobs(checked({"jobs": {"ttlSecondsAfterFinished": 0}, "router": {"replicas": 3}}))
    changed = jobs(checked({"image": {"tag": "v2"}}))
    for name, job in jobs(defaults).items():
        assert unchanged[name]["metadata"]["name"] == job["metadata"]["name"]
        assert "ttlSecondsAfterFinished" not in unchanged[name]["spec"]
        assert changed[name]["metadata"]["name"] != job["metadata"]["name"], "specs of jobs cannot be changed"


def test_a_changed_declaration_is_another_job_and_another_configmap() -> None:
    found = checked(ADMINISTERED)
    again = checked({**ADMINISTERED, "declaration": {**ADMINISTERED["declaration"], "revision": "2"}})
    other = checked({**ADMINISTERED, "declaration": {"tenants": {"acme": {"plan": "silver"}}}})
    names = [jobs(objects)["demo-declaration"]["metadata"]["name"] for objects in (found, again, other)]
    assert len(set(names)) == 3
    maps = [{name for name in kinds(o, "ConfigMap") if "declaration" in name} for o in (found, again, other)]
    assert maps[0] == maps[1] != maps[2]


@pytest.mark.parametrize("values", [{}, ADMINISTERED])
def test_the_job_makes_each_credential_that_a_pod_waits_for(values: dict[str, Any]) -> None:
    objects = checked(values)
    command = jobs(objects)["demo-credentials"]["spec"]["template"]["spec"]["containers"][0]["command"]
    made = {argument.removeprefix("--make=") for argument in command if argument.startswith("--make=")}
    entries = [e for pod in pods(objects) for c in pod.containers for e in c.get("env", ())]
    wanted = [e["valueFrom"]["secretKeyRef"] for e in entries if "secretKeyRef" in e.get("valueFrom", {})]
    assert made == {reference["key"] for reference in wanted if reference["name"] == "demo-credentials"}


def annotations_of(found: Object) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def containers_of(job: Object) -> list[Object]:
    return list(job["spec"]["template"]["spec"]["containers"])


def test_what_cannot_be_made_again_outlives_the_release_unless_asked(defaults: list[Object]) -> None:
    for claim in kinds(defaults, "PersistentVolumeClaim").values():
        assert claim["metadata"]["annotations"][KEEP] == "keep"
    assert "demo-credentials-remove" not in kinds(defaults, "Job")
    asked = checked({"keepOnUninstall": False})
    assert KEEP not in json.dumps(asked)
    removal = one(asked, "Job", "demo-credentials-remove")
    assert removal["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    hooks = [job for name, job in kinds(asked, "Job").items() if name.endswith("-remove")]
    assert [job["spec"]["activeDeadlineSeconds"] for job in hooks] == [240, 240], (
        "an uninstallation does not hang on them"
    )
    (resources,) = {json.dumps(container["resources"]["requests"]) for job in hooks for container in containers_of(job)}
    assert json.loads(resources) == {"cpu": "25m", "memory": "32Mi"}, "nodes that the release has filled have room"
    bounds = [found["spec"].get("activeDeadlineSeconds") for found in asked if HOOK in annotations_of(found)]
    assert len(bounds) == 3
    assert all(bounds), "Helm waits for no hook without end"


def test_credentials_that_an_older_chart_made_stay_with_the_release() -> None:
    old = {"metadata": {"annotations": {"meta.helm.sh/release-name": "demo"}}}
    assert said_by("stratos.isOfRelease", SERVED_HERE, {"live": old}) == "yes"
    for live in (
        {},
        {"metadata": {"labels": {}}},
        {"metadata": {"annotations": {"meta.helm.sh/release-name": "other"}}},
    ):
        assert said_by("stratos.isOfRelease", SERVED_HERE, {"live": live}) == ""


def test_no_volume_is_mounted_by_more_than_one_pod(defaults: list[Object]) -> None:
    """Most clusters have no ReadWriteMany."""
    claims = kinds(defaults, "PersistentVolumeClaim")
    assert {name: claim["spec"]["accessModes"] for name, claim in claims.items()} == {
        "demo-objects": ["ReadWriteOnce"],
        "demo-redis": ["ReadWriteOnce"],
    }
    for name in claims:
        holders = [p.owner for p in pods(defaults) if f'"{name}"' in json.dumps(p.spec.get("volumes"))]
        (owner,) = [holder.removeprefix("Deployment ") for holder in holders]
        spec = one(defaults, "Deployment", owner)["spec"]
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    live = {"live": {"spec": {"accessModes": ["ReadWriteMany"]}}, "modes": ["ReadWriteOnce"]}
    assert said_by("stratos.accessModes", SERVED_HERE, live) == '["ReadWriteMany"]', "a claim cannot change"


def test_every_process_finds_the_releases_own_objects(defaults: list[Object]) -> None:
    for name, prefix in (
        ("demo-gateway", "GATEWAY"),
        ("demo-decode-base", "DECODE_WORKER"),
        ("demo-lora-registry", "LORA_REGISTRY"),
    ):
        found = variables(container(defaults, name))
        assert found[f"STRATOS_{prefix}_OBJECT_STORE__URL"] == "s3://stratos"
        assert found[f"STRATOS_{prefix}_OBJECT_STORE__S3_ENDPOINT_URL"] == "http://demo-object-store:9300"
        assert found["AWS_ACCESS_KEY_ID"] == "stratos"
    bucket = {"objectStore": {"url": "s3://mine/prefix"}}
    assert "object-store" not in {p.component for p in pods(checked(bucket))}


def test_every_container_keeps_within_a_limit_range() -> None:
    """One that does not is never made, and Helm waits for a hook until its time is over."""
    hook = yaml.safe_load(said_by("stratos.recordHook", SERVED_HERE, {"model": SHIPPED}))
    for pod in pods([*checked({"keepOnUninstall": False}), hook]):
        for found in pod.containers:
            asked, most = (
                {k: parse_quantity(v) for k, v in found["resources"][n].items()} for n in ("requests", "limits")
            )
            for name, least in LIMITS["min"].items():
                assert parse_quantity(least) <= asked[name] <= most[name], (pod.component, found["name"])
            assert most["cpu"] <= asked["cpu"] * int(LIMITS["maxLimitRequestRatio"]["cpu"]), found["name"]
