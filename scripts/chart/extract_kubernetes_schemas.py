#!/usr/bin/env python3
"""Write tests/fixtures/kubernetes/vX.json: the JSON schemas of the kinds that the chart renders, texts left out.

python -m scripts.chart.extract_kubernetes_schemas FOLDER 1.29.0 1.37.0

FOLDER is kubernetes-json-schema of the package kubernetes-validate: the schemas of Kubernetes' OpenAPI document (Apache
License 2.0), closed to unknown fields. What the text of a field calls deprecated is marked so.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests" / "fixtures" / "kubernetes"
GROUPS = {
    "apps": ("Deployment",),
    "autoscaling": ("HorizontalPodAutoscaler",),
    "batch": ("Job", "CronJob"),
    "core": (
        "ConfigMap",
        "PersistentVolumeClaim",
        "Pod",
        "Secret",
        "Service",
        "ServiceAccount",
        "LimitRange",
        "ResourceQuota",
    ),
    "networking": ("Ingress", "NetworkPolicy"),
    "policy": ("PodDisruptionBudget",),
    "rbac": ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    "scheduling": ("PriorityClass",),
}
VERSION_OF = {"autoscaling": "v2"}
_KEPT = ("type", "required", "items", "additionalProperties", "enum", "oneOf", "anyOf", "format")
_DEPRECATED = re.compile(r"^(\w+ is )?[Dd]eprecated|DEPRECATED|is deprecated")


def reference_name(reference: str) -> str:
    """io.k8s.api.core.v1.Container"""
    return reference.rpartition("/")[2]


def pruned(schema: Any) -> Any:
    """Without texts; references within the document."""
    if isinstance(schema, list):
        return [pruned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{reference_name(schema['$ref'])}"}
    kept = {
        key: value if key in ("required", "enum", "type", "format") else pruned(value)
        for key, value in schema.items()
        if key in _KEPT
    }
    if "properties" in schema:
        kept["properties"] = {name: pruned(value) for name, value in schema["properties"].items()}
    if _DEPRECATED.search(schema.get("description", "")):
        kept["deprecated"] = True
    return kept


def references(schema: Any) -> set[str]:
    """Names of all definitions that it refers to."""
    if isinstance(schema, list):
        return {name for item in schema for name in references(item)}
    if not isinstance(schema, dict):
        return set()
    found = {name for value in schema.values() for name in references(value)}
    return found | ({reference_name(schema["$ref"])} if isinstance(schema.get("$ref"), str) else set())


def extracted(definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions of ``GROUPS``, and all that they need."""
    waiting = [
        f"io.k8s.api.{group}.{VERSION_OF.get(group, 'v1')}.{k}" for group, kinds in GROUPS.items() for k in kinds
    ]
    found: dict[str, Any] = {}
    while waiting:
        if (name := waiting.pop()) not in found:
            found[name] = pruned(definitions[name])
            waiting.extend(references(found[name]))
    return {"$defs": dict(sorted(found.items()))}


def main() -> None:
    """Write one file a version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("versions", nargs="+")
    arguments = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)
    for version in arguments.versions:
        path = arguments.folder / f"v{version}-local-strict" / "_definitions.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        definitions = document.get("$defs") or document["definitions"]
        target = TARGET / f"v{version.rpartition('.')[0]}.json"
        target.write_text(json.dumps(extracted(definitions), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
