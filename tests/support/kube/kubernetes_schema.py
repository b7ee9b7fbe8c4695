"""Objects checked as an API server of the oldest and of the newest supported version would check them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.paths import ROOT

VERSIONS = ("v1.29", "v1.37")
_GROUPS = {
    "apps/v1": "apps.v1", "autoscaling/v2": "autoscaling.v2",
    "batch/v1": "batch.v1", "v1": "core.v1", "networking.k8s.io/v1": "networking.v1",
    "policy/v1": "policy.v1", "rbac.authorization.k8s.io/v1": "rbac.v1", "scheduling.k8s.io/v1": "scheduling.v1",
}  # fmt: skip
CUSTOM_GROUPS = (
    "gateway.networking.k8s.io/", "inference.networking.k8s.io/", "cert-manager.io/",
    "apiregistration.k8s.io/", "apiextensions.k8s.io/", "monitoring.coreos.com/",
)  # fmt: skip


def problems(version: str, found: dict[str, Any]) -> list[str]:
    """What an API server of this version refuses or warns of."""
    if found["apiVersion"].startswith(CUSTOM_GROUPS):
        return []
    return list(_problems(version, json.dumps(found)))


@functools.cache  # most objects are the same whatever the values of a rendering are
def _problems(version: str, text: str) -> tuple[str, ...]:
    found = json.loads(text)
    validator = _validator(version, f"{_GROUPS[found['apiVersion']]}.{found['kind']}")
    where = f"{version} {found['kind']} {found['metadata']['name']}"
    errors = [f"{where}: {error.json_path}: {error.message[:200]}" for error in validator.iter_errors(found)]
    deprecated = _deprecated(found, validator.schema, _document(version))
    return (*errors, *(f"{where}: {path} is deprecated" for path in deprecated))


@functools.cache
def _document(version: str) -> Any:
    return json.loads((ROOT / "tests" / "fixtures" / "kubernetes" / f"{version}.json").read_text())


@functools.cache
def _validator(version: str, name: str) -> Draft202012Validator:
    document = _document(version)
    assert f"io.k8s.api.{name}" in document["$defs"], f"{version} has no {name}"
    return Draft202012Validator({"$ref": f"#/$defs/io.k8s.api.{name}", **document})


def _deprecated(value: Any, schema: Any, document: Any, path: str = "$") -> Iterator[str]:
    while "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        for item in value:
            yield from _deprecated(item, schema.get("items", {}), document, f"{path}[]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            known = schema.get("properties", {}).get(key, {})
            if known.get("deprecated"):
                yield f"{path}.{key}"
            yield from _deprecated(inner, known, document, f"{path}.{key}")
