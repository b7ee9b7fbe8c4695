"""How jobs and the toolbox reach the stores of an installation: as its services do. Needs a renderer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.observe.alerts.stores import JOBS
from tests.support.kube.chart_objects import Object, container, kinds, one, pods, variables
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
DIGEST = "d" * 64
PULLED = {"name": "pulled", "digest": DIGEST, "cache": {"hostPath": "/var/models", "prePull": {"digests": [DIGEST]}}}
VALUES: dict[str, Any] = {
    "objectStore": {"url": "s3://bucket", "s3": {"region": "eu-south-1"}},
    "backup": {"schedule": "17 * * * *", "objectStoreUrl": "s3://copies/demo"},
    "gateway": {"admin": {"enabled": True}, "config": {"records": {"prefix": "site"}}},
    "declaration": {"tenants": {"acme": {"plan": "gold"}}},
    "models": [
        {"name": "base", "source": {"objectStore": {"prefix": "models/base"}}},
        {"name": "pulled", "source": {"registry": PULLED}},
    ],
    "modelResources": {"enabled": True},
    "mtls": {"source": "secrets"},
}


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return rendered(VALUES)


def is_reader(found: Object) -> bool:
    """Whether a container is told of the object store."""
    return "s3://bucket" in json.dumps([found.get("command"), found.get("env")])


def test_whatever_opens_the_object_store_knows_its_region(objects: list[Object]) -> None:
    """The defect: services knew it, and the jobs that set the store up or fetch models did not."""
    readers = {
        f"{pod.owner} {found['name']}": variables(found).get("AWS_DEFAULT_REGION")
        for pod in pods(objects)
        for found in pod.containers
        if is_reader(found)
    }
    for name in ("init-store", "model-base", "backup", "toolbox", "pull-prefill-pulled", "gateway"):
        assert any(f"demo-{name}" in reader for reader in readers), name
    assert set(readers.values()) == {"eu-south-1"}, readers
    templates = one(objects, "ConfigMap", "demo-model-templates")["data"]
    for name in ("retire", "template.default.objectStore"):
        assert "AWS_DEFAULT_REGION" in templates[name]
    assert not any("AWS_DEFAULT_REGION" in variables(c) for p in pods(checked({})) for c in p.containers)


def test_the_registry_and_the_toolbox_have_the_head_of_the_gateways_keys(objects: list[Object]) -> None:
    """The defect: a restore in the toolbox of one of two installations on one Redis was one of the other's store."""
    assert variables(container(objects, "demo-gateway"))["STRATOS_GATEWAY_RECORDS__PREFIX"] == "site"
    assert variables(container(objects, "demo-lora-registry"))["STRATOS_LORA_REGISTRY_RECORDS__PREFIX"] == "site"
    assert variables(container(objects, "demo-toolbox"))["STRATOS_RECORDS_PREFIX"] == "site"
    own = {"loraRegistry": {"config": {"records": {"prefix": "other"}}}}
    registry = variables(container(rendered({**VALUES, **own}), "demo-lora-registry"))
    assert registry["STRATOS_LORA_REGISTRY_RECORDS__PREFIX"] == "other"


def test_the_toolbox_finds_the_backups_where_they_are_made(objects: list[Object]) -> None:
    job = one(objects, "CronJob", "demo-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert "--backups=s3://copies/demo" in job["containers"][0]["command"]
    assert variables(container(objects, "demo-toolbox"))["STRATOS_BACKUPS"] == "s3://copies/demo"
    with pytest.raises(RenderError, match="objectStoreUrl"):  # a pod of a job has no folder that stays
        rendered({"backup": {"objectStoreUrl": "file:///tmp/copies"}})


def test_jobs_wait_for_no_certificate_that_the_values_do_not_ask_for(objects: list[Object]) -> None:
    """The defect: the job of a declaration stood without a Secret of the role admin, which the toolbox alone needs."""
    mounted = {
        volume["secret"]["secretName"]
        for pod in pods(objects)
        if "toolbox" not in pod.owner
        for volume in pod.spec.get("volumes", ())
        if "secret" in volume
    }
    roles = ("gateway", "router", "prefill-worker", "decode-worker", "lora-registry", "autoscaler")
    assert mounted == {f"demo-tls-{role}" for role in roles}


def test_an_alert_watches_every_job_of_a_release() -> None:
    found = checked({"gateway": {"admin": {"enabled": True}}, "declaration": {"tenants": {"acme": {"plan": "gold"}}}})
    names = [name for name, job in kinds(found, "Job").items() if "annotations" not in job["metadata"]]
    assert len(names) == 6
    assert [name for name in names if not re.fullmatch(JOBS, name)] == []
