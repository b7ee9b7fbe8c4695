"""The definition of the kind ``Model`` (apiextensions.k8s.io/v1): a structural schema with bounds, from the same fields
that the autoscaler reads.

Its rules in CEL say what bounds cannot: one source, sizes that fit, a name that stays.
"""

from __future__ import annotations

from typing import Any

from stratos_autoscaler.model_resources.wanted.sources import SERVED_NAME, SOURCES, SourceKind
from stratos_autoscaler.model_resources.wanted.spec import (
    DEFAULT_TEMPLATE,
    GROUP,
    KIND,
    MAX_WORKERS,
    NAME,
    PLURAL,
    VERSION,
)

_STATUS_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_MAX_TERM = 512


def model_definition(values_schema: dict[str, Any]) -> dict[str, Any]:
    """The whole object, without labels.

    Args:
        values_schema: of the chart's values; terms of a Model are those of an entry of ``models``.
    """
    terms = values_schema["definitions"]["model"]["properties"]["terms"]["properties"]
    schema = _object(
        {"spec": _spec(terms), "status": _status()},
        required=["spec"],
        description="A base model that the release's gateways serve. See docs/models.md.",
        rules=[(f"self.metadata.name.matches('{NAME}')", "metadata.name: at most 32 characters of a-z 0-9 -")],
    )
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            _column("Served as", ".status.servedName"),
            _column("State", ".status.state"),
            _column("Reason", ".status.reason"),
            _column("Prefill", ".status.pools.prefill.shown"),
            _column("Decode", ".status.pools.decode.shown"),
            _column("Revision", ".status.revision"),
            _column("Age", ".metadata.creationTimestamp", "date"),
            _column("Message", ".status.message") | {"priority": 1},
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "versions": [version],
        },
    }


def _spec(terms: dict[str, Any]) -> dict[str, Any]:
    served = _text(SERVED_NAME, 260, 'What clients write as "model"; without it the name. It stays.')
    return _object(
        {
            "servedName": served,
            "source": _source(),
            "template": _text(NAME, 32, "Of modelResources.templates of the values.") | {"default": DEFAULT_TEMPLATE},
            "terms": _object(
                {name: _term(part) for name, part in terms.items()},
                description="Its lengths, row of prices and the like, as models[].terms of the values.",
            ),
            "prefill": _pool("prefill"),
            "decode": _pool("decode"),
        },
        required=["source"],
        rules=[
            (
                "has(self.servedName) == has(oldSelf.servedName) && "
                "(!has(self.servedName) || self.servedName == oldSelf.servedName)",
                "servedName stays as it is; make another Model, or an alias",
            ),
            (
                "!(has(self.prefill) && has(self.prefill.replicas) && self.prefill.replicas == 0 && "
                "has(self.decode) && has(self.decode.replicas) && self.decode.replicas == 0)",
                "both pools are left out",
            ),
        ],
    )


def _source() -> dict[str, Any]:
    kinds = ", ".join(SOURCES)
    count = " + ".join(f"(has(self.{kind}) ? 1 : 0)" for kind in SOURCES)
    return _object(
        {kind: _source_kind(found) for kind, found in SOURCES.items()},
        description="Where the model comes from. A changed one is a further revision.",
        rules=[(f"{count} == 1", f"has exactly one of {kinds}")],
    )


def _source_kind(kind: SourceKind) -> dict[str, Any]:
    fields = {name: _text(one.pattern, one.max_length, one.text) for name, one in kind.fields.items()}
    required = [name for name, one in kind.fields.items() if one.is_required]
    return _object(fields, required=required, description=kind.text)


def _pool(role: str) -> dict[str, Any]:
    number = {"type": "integer", "format": "int32", "minimum": 0, "maximum": MAX_WORKERS}
    return _object(
        {
            "replicas": number
            | {"description": "Pods where the template's autoscaling.mode is none; 0 leaves it out."},
            "minReplicas": number | {"description": "Fewest pods, where the pool is scaled."},
            "maxReplicas": number | {"minimum": 1, "description": "Most pods, where the pool is scaled."},
        },
        description=f"Size of the {role} pool; what is not said is the template's.",
        rules=[
            (
                "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "minReplicas is above maxReplicas",
            )
        ],
    )


def _term(part: dict[str, Any]) -> dict[str, Any]:
    names = ("type", "enum", "minimum", "maximum", "description")
    kept: dict[str, Any] = {key: part[key] for key in names if key in part}
    if kept["type"] == "integer":
        return {"format": "int64", **kept}
    return kept if "enum" in kept else {**kept, "maxLength": _MAX_TERM}


def _status() -> dict[str, Any]:
    pool = _object(
        {
            "deployment": _STATUS_TEXT | {"description": "Has the scale of the pool: `kubectl scale deployment`."},
            "mode": _STATUS_TEXT | {"description": "Who sizes it."},
            "replicas": _COUNT,
            "ready": _COUNT,
            "updated": _COUNT | {"description": "Pods of the newest source and template."},
            "shown": _STATUS_TEXT | {"description": "READY n/m."},
        }
    )
    condition = _object(
        {
            "type": _STATUS_TEXT,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": _STATUS_TEXT,
            "message": _STATUS_TEXT,
            "observedGeneration": {"type": "integer", "format": "int64"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
        required=["type", "status", "reason", "message", "lastTransitionTime"],
    )
    return _object(
        {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "state": _STATUS_TEXT | {"description": "Ready, Loading, Failed or Leaving."},
            "reason": _STATUS_TEXT,
            "message": _STATUS_TEXT,
            "servedName": _STATUS_TEXT,
            "revision": _STATUS_TEXT | {"description": "First digits of the digest."},
            "digest": _STATUS_TEXT | {"description": "Of the model, once it is known."},
            "pools": _object({"prefill": pool, "decode": pool}),
            "record": _object(
                {"digest": _STATUS_TEXT | {"description": "Of the job that ended last."}, "count": _COUNT},
                description="What the gateways were told.",
            ),
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        }
    )


def _text(pattern: str, max_length: int, text: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": max_length, "pattern": pattern, "description": text}


def _object(
    properties: dict[str, Any],
    *,
    required: list[str] | None = None,
    description: str = "",
    rules: list[tuple[str, str]] | None = None,
) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if description:
        found["description"] = description
    if rules:
        found["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    return found


def _column(name: str, path: str, kind: str = "string") -> dict[str, Any]:
    return {"name": name, "jsonPath": path, "type": kind}
