"""The objects for a Ray cluster: their form, by the schema of KubeRay's reference, and what they ask the driver for."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from deploy.images.requirements import requirements
from stratos.cli.batches.commands import batch_app
from tests.support.paths import ROOT

FILE = ROOT / "deploy" / "ray" / "batch.yaml"


def _of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)}


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
POD = _of({"metadata": {"type": "object"}, "spec": {"type": "object", "required": ["containers"]}}, "spec")
CLUSTER = _of(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": _of(
            {
                "rayVersion": {"type": "string"},
                "suspend": {"type": "boolean"},
                "enableInTreeAutoscaling": {"type": "boolean"},
                "authOptions": _of(
                    {
                        "mode": {"enum": ["disabled", "token"]},
                        "secretName": {"type": "string"},
                        "enableK8sTokenAuth": {"type": "boolean"},
                    }
                ),
                "autoscalerOptions": _of(
                    {
                        "idleTimeoutSeconds": COUNT,
                        "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
                        "version": {"enum": ["v1", "v2"]},
                        "resources": {"type": "object"},
                    }
                ),
                "headGroupSpec": _of(
                    {
                        "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                        "rayStartParams": TEXTS,
                        "template": POD,
                        "headService": {"type": "object"},
                        "enableIngress": {"type": "boolean"},
                    },
                    "template",
                ),
                "workerGroupSpecs": {
                    "type": "array",
                    "items": _of(
                        {
                            "groupName": {"type": "string"},
                            "replicas": COUNT,
                            "minReplicas": COUNT,
                            "maxReplicas": COUNT,
                            "numOfHosts": COUNT,
                            "idleTimeoutSeconds": COUNT,
                            "rayStartParams": TEXTS,
                            "template": POD,
                        },
                        "groupName", "template", "maxReplicas", "minReplicas",
                    ),
                },
            },
            "headGroupSpec",
        ),
    },
    "apiVersion", "kind", "metadata", "spec",
)  # fmt: skip
"""Fields that KubeRay 1.7 documents for a cluster, those of pods left to Kubernetes."""


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.safe_load_all(FILE.read_text())}


def containers(objects: dict[str, Any]) -> list[dict[str, Any]]:
    spec = objects["RayCluster"]["spec"]
    templates = [spec["headGroupSpec"], *spec["workerGroupSpecs"], objects["Job"]["spec"]]
    return [one for found in templates for one in found["template"]["spec"]["containers"]]


def test_the_cluster_has_the_documented_form(objects: dict[str, Any]) -> None:
    jsonschema.validate(objects["RayCluster"], CLUSTER)
    wrong = {**objects["RayCluster"], "spec": {**objects["RayCluster"]["spec"], "authMode": "token"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, CLUSTER)


def test_tokens_are_on_and_statistics_off_everywhere(objects: dict[str, Any]) -> None:
    auth = objects["RayCluster"]["spec"]["authOptions"]
    assert auth["mode"] == "token"
    found = [{entry["name"]: entry for entry in one["env"]} for one in containers(objects)]
    assert all(env["RAY_USAGE_STATS_ENABLED"]["value"] == "0" for env in found)
    driver = found[-1]
    assert driver["RAY_AUTH_MODE"]["value"] == "token"
    assert driver["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == auth["secretName"]


def test_the_version_is_the_one_that_is_pinned_and_the_image_has_all_of_it(objects: dict[str, Any]) -> None:
    version = objects["RayCluster"]["spec"]["rayVersion"]
    assert f"ray=={version}\n" in (ROOT / "constraints.txt").read_text()
    names = {re.split(r"[\[>=<]", one)[0] for one in requirements(["ray"], ROOT / "pyproject.toml")}
    assert {"ray", "torch", "starlette", "typer", "numpy"} <= names
    assert "ray" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]


def test_the_driver_joins_this_cluster_and_the_command_knows_its_flags(objects: dict[str, Any]) -> None:
    [text] = objects["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    join, _, run = text.partition(" && exec ")
    assert shlex.split(join)[2] == f"--address={objects['RayCluster']['metadata']['name']}-head-svc:6379"
    words = shlex.split(run)
    assert words[:3] == ["stratos", "batch", "run"]
    known = set(
        re.findall(r"--[a-z-]+", CliRunner().invoke(batch_app, ["run", "--help"], env={"COLUMNS": "200"}).output)
    )
    assert {word for word in words if word.startswith("--")} <= known
    group = objects["RayCluster"]["spec"]["workerGroupSpecs"][0]
    threads = words[words.index("--threads") + 1]
    assert group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == threads
    assert int(words[words.index("--engines") + 1]) == group["maxReplicas"]
