"""Parts of values.schema.json that several values share, and those that are lists of objects."""

from __future__ import annotations

from typing import Any

from scripts.chart.schema.settings import SECRET_REFERENCE, camel, config_schema, secret_schema
from scripts.docs.document_settings import SERVICES
from stratos.routing.policy.filters import FILTERS
from stratos.routing.policy.pickers import PICKERS
from stratos.routing.policy.scorers import SCORERS

NAME = r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$"
_TEXT = {"type": "string"}
_FILLED = {"type": "string", "minLength": 1}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_NO_TERMS = ("path", "name", "digest")
"""Settings of a model that are not its terms: what it is, and where."""


def definitions(values: dict[str, Any]) -> dict[str, Any]:
    """All of them.

    Args:
        values: schema of values.yaml, from which pools of a model take what they may override.
    """
    found: dict[str, Any] = {
        "quantity": {
            "type": ["string", "number"],
            "minimum": 0,
            "pattern": r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$",
        },
        "strings": {"type": "object", "additionalProperties": _TEXT},
        "secretReference": SECRET_REFERENCE,
        "cidr": {"type": "string", "pattern": r"^[0-9a-fA-F.:]+/[0-9]{1,3}$"},
        "env": _OBJECTS | {"items": {"type": "object", "required": ["name"], "properties": {"name": _FILLED}}},
        "networkPeer": _closed(
            podSelector={"type": "object"}, namespaceSelector={"type": "object"}, ipBlock={"type": "object"}
        )
        | {"minProperties": 1},
        "resources": _closed(requests={"$ref": "#/definitions/amounts"}, limits={"$ref": "#/definitions/amounts"}),
        "amounts": {"type": "object", "additionalProperties": {"$ref": "#/definitions/quantity"}},
        "rollout": _closed(maxSurge={"type": ["integer", "string"]}, maxUnavailable={"type": ["integer", "string"]}),
        "kvHost": {"anyOf": [{"enum": ["auto", "off", False]}, {"type": "integer", "minimum": 1, "maximum": 4096}]},
        "kvDisk": _closed(gib={"type": "integer", "minimum": 0}, volume={"type": "object"}),
        "scheduling": _closed(
            priorityClassName=_TEXT,
            schedulerName=_TEXT,
            nodeSelector={"$ref": "#/definitions/strings"},
            tolerations=_OBJECTS,
            affinity={"type": "object"},
            topologySpreadConstraints=_OBJECTS,
            annotations={"$ref": "#/definitions/strings"},
            labels={"$ref": "#/definitions/strings"},
        ),
        "source": model_source(),
    }
    for service in SERVICES:
        found[f"{camel(service)}Config"] = config_schema(service)
    terms = found["gatewayConfig"]["properties"]["model"]["properties"]
    found["model"] = _model(values["properties"], {name: terms[name] for name in terms if name not in _NO_TERMS})
    found["model"]["properties"]["speculation"] = _speculation(found["decodeWorkerConfig"])
    found["modelTemplate"] = _model_template(found["model"]["properties"])
    _name_policies(found["routerConfig"]["properties"]["policies"]["properties"]["custom"]["additionalProperties"])
    found["gatewaySecretConfig"] = secret_schema("gateway")
    return found


def _name_policies(policy: dict[str, Any]) -> None:
    """Name the parts of a policy; the settings class checks them only when a router starts."""
    parts = policy["properties"]
    parts["filters"]["items"] = {"enum": sorted(FILTERS)}
    parts["scorers"]["propertyNames"] = {"enum": sorted(SCORERS)}
    parts["picker"] |= {"enum": sorted(PICKERS)}


def _model(values: dict[str, Any], terms: dict[str, Any]) -> dict[str, Any]:
    fixed = {
        role: _closed(
            **{name: part for name, part in values[f"{role}Worker"]["properties"].items() if name != "autoscaling"}
        )
        for role in ("prefill", "decode")
    }
    model = _closed(
        name={"type": "string", "pattern": NAME, "description": "Part of the names of its objects."},
        servedName=_TEXT | {"description": 'What clients write as "model"; empty takes the name.'},
        source={"$ref": "#/definitions/source"},
        terms=_closed(**terms)
        | {"description": "Its lengths, row of prices and the like, as gateway.config.model says them of the first."},
        hosts={"type": "array", "description": "Refused: every host leads to all models."},
        gateway={"type": "object", "description": "Refused: gateways serve all models."},
        prefill=_closed(**values["prefillWorker"]["properties"]),
        decode=_closed(**values["decodeWorker"]["properties"]),
        pools={
            "type": "object",
            "propertyNames": {"pattern": NAME},
            "additionalProperties": _closed(**fixed) | {"minProperties": 1},
            "description": "Further workers, by the label that plans name in pools: as many as replicas says.",
        },
    )
    return model | {"required": ["name", "source"]}


def _speculation(worker: dict[str, Any]) -> dict[str, Any]:
    drafts = worker["properties"]["scheduler"]["properties"]["speculation"]["properties"]
    wanted = {name: part for name, part in drafts.items() if name != "isAdaptive"}
    text = "Drafts of its decode workers, as decode.config.scheduler.speculation says them, and of its record."
    return _closed(**wanted) | {"required": ["method"], "description": text}


def _model_template(model: dict[str, Any]) -> dict[str, Any]:
    """Pools of a model to come; spares of a worker's size and pre-pulling are of models that are known."""
    pools = {
        role: _closed(**{name: part for name, part in model[role]["properties"].items() if name != "warmSpares"})
        for role in ("prefill", "decode")
    }
    source = model_source()["properties"]
    registry_cache = source["registry"]["properties"]["cache"]
    del registry_cache["properties"]["prePull"]
    return _closed(
        **pools,
        cache=source["objectStore"]["properties"]["cache"],
        registryCache=registry_cache,
        sizeLimit={"$ref": "#/definitions/quantity"},
    )


def model_source() -> dict[str, Any]:
    """Where a model comes from."""
    kinds = _closed(
        image=_closed(
            repository=_FILLED,
            tag=_TEXT,
            digest=_TEXT,
            path=_FILLED | {"description": "Folder of the model in the image, which has cp."},
            sizeLimit={"$ref": "#/definitions/quantity"},
        ),
        claim=_closed(name=_FILLED, path=_TEXT | {"description": "Folder of the model in the volume."}),
        objectStore=_closed(
            prefix=_FILLED | {"description": "Below objectStore.url."},
            digest=_TEXT
            | {"description": "SHA-256 of the model, which is checked; `stratos models upload` prints it."},
            cache=_closed(
                claim=_TEXT
                | {"description": "A claim that the pods of a node, or all pods, share; empty: one copy a pod."},
                sizeLimit={"$ref": "#/definitions/quantity"},
            ),
        ),
        registry=_closed(
            name=_TEXT | {"description": "Name under which it is published; empty: the name of the entry."},
            digest=_DIGEST | {"description": "The revision, as `stratos models publish` printed it behind the @."},
            cache=_closed(
                claim=_TEXT | {"description": "A claim that the workers of a node, or all of them, share and write."},
                hostPath=_TEXT
                | {"description": "Folder of each node, there already, that the workers' user may write."},
                medium={
                    "enum": ["", "Memory"],
                    "description": "Memory: of the pod, for nodes without a disk; counts beside what the engine takes.",
                },
                sizeLimit={"$ref": "#/definitions/quantity"},
                prePull=_closed(digests={"type": "array", "items": _DIGEST, "uniqueItems": True})
                | {
                    "description": "A pod on each node where its workers may run fills hostPath before they come, "
                    "with further revisions, too: {digests: [...]}.",
                    "minProperties": 1,
                },
            ),
        ),
        imageVolume=_closed(repository=_FILLED, tag=_TEXT, digest=_TEXT, path=_TEXT),
    )
    kinds["properties"]["image"]["required"] = ["repository"]
    kinds["properties"]["claim"]["required"] = ["name"]
    kinds["properties"]["objectStore"]["required"] = ["prefix"]
    kinds["properties"]["registry"]["required"] = ["digest"]
    kinds["properties"]["imageVolume"]["required"] = ["repository"]
    return kinds | {"minProperties": 1, "maxProperties": 1}


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
