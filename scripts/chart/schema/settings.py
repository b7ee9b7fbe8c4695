"""Settings of the services as the chart sees them: a JSON schema for ``config``, and the variable of each value.

``config`` holds every setting but three kinds: secrets, which ``secretConfig`` takes as references; what the chart
decides itself (``OWNED``: addresses, paths, names of pods); and nothing else.
"""

from __future__ import annotations

import typing
from typing import Any

from pydantic import TypeAdapter

from scripts.docs.document_settings import SERVICES, chart_path, service_class, text_of
from stratos.rpc.settings import ServiceSettings, Setting, settings_of

OWNED = {
    "listen": "ports.grpc",
    "metricsListen": "ports.metrics",
    "advertiseHost": "the address of the pod",
    "addressFile": "nothing needs it",
    "httpListen": "ports.http",
    "httpListenerFd": "nothing needs it",
    "workerId": "the name of the pod",
    "isSpare": "nothing wakes spares on Kubernetes",
    "redisUrl": "redis",
    "keyPepper": "credentials",
    "platformKey": "credentials.platformKeySecret",
    "supervisorAddress": "there is none on Kubernetes",
    "model.path": "models[].source",
    "model.name": "models[].servedName",
    "runner.modelPath": "models[].source",
    "fake.modelPath": "models[].source",
    "httpTls.certificatePath": "gateway.tls",
    "httpTls.keyPath": "gateway.tls",
    "tls.certificatePath": "mtls",
    "tls.keyPath": "mtls",
    "tls.caPath": "mtls",
    "tls.domain": "mtls.domain",
    "transport.gloo.host": "the address of the pod",
    "transport.nccl.host": "the address of the pod",
    "transport.tls.host": "the address of the pod",
    "transport.tls.port": "ports.kv",
    "objectStore.url": "objectStore.url",
    "objectStore.s3EndpointUrl": "objectStore.s3.endpointUrl",
    "objectStore.s3Region": "objectStore.s3.region",
}
"""Setting -> what in the values decides it."""

SECRET_REFERENCE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "key"],
    "properties": {"name": {"type": "string", "minLength": 1}, "key": {"type": "string", "minLength": 1}},
    "description": "A key of a Secret in the release's namespace.",
}


def is_secret(setting: Setting) -> bool:
    """It must not be written into values."""
    return "SecretStr" in str(setting.annotation)


def leaf_schema(cls: type[ServiceSettings], setting: Setting) -> dict[str, Any]:
    """JSON schema of one setting, with the bounds and the text that its class declares."""
    annotation = setting.annotation
    if len(setting.path) == 1 and (metadata := cls.model_fields[setting.path[0]].metadata):
        annotation = typing.Annotated[annotation, *metadata]
    found = TypeAdapter(annotation).json_schema()
    schema = _inlined(found, found.pop("$defs", {}))
    owner = cls if len(setting.path) == 1 else setting.owner
    schema["description"] = text_of(owner, setting.path[-1])
    return schema


def config_schema(service: str) -> dict[str, Any]:
    """JSON schema of ``<service>.config``."""
    cls = service_class(service)
    root = _closed()
    for setting in settings_of(cls):
        path = chart_path(setting)
        if path not in OWNED and not is_secret(setting):
            _place(root, path.split("."), leaf_schema(cls, setting))
    return root


def secret_schema(service: str) -> dict[str, Any]:
    """JSON schema of ``<service>.secretConfig``: the same shape, with a reference to a Secret at each end."""
    root = _closed()
    for setting in settings_of(service_class(service)):
        path = chart_path(setting)
        if path not in OWNED and is_secret(setting):
            _place(root, path.split("."), {"$ref": "#/definitions/secretReference"})
    return root


def variables() -> dict[str, Any]:
    """Table by which templates turn ``config`` into variables, by service in camel case."""
    found: dict[str, Any] = {}
    for service in SERVICES:
        cls = service_class(service)
        names: dict[str, dict[str, str]] = {"config": {}, "secretConfig": {}}
        for setting in settings_of(cls):
            if (path := chart_path(setting)) not in OWNED:
                names["secretConfig" if is_secret(setting) else "config"][path] = "__".join(setting.path).upper()
        found[camel(service)] = {"prefix": cls.env_prefix, **names}
    return found


def camel(name: str) -> str:
    """``decode_worker`` -> ``decodeWorker``."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _closed() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _place(root: dict[str, Any], path: list[str], schema: dict[str, Any]) -> None:
    for name in path[:-1]:
        root = root["properties"].setdefault(name, _closed())
    root["properties"][path[-1]] = schema


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema without references and without pydantic's titles, ``format`` and text defaults."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if reference := schema.get("$ref"):
        return _inlined(definitions[reference.rpartition("/")[2]], definitions)
    kept = {key: value for key, value in schema.items() if key not in ("title", "format", "default")}
    if "prefixItems" in kept:  # draft 7 has another word
        kept["items"] = kept.pop("prefixItems")
    properties = kept.pop("properties", None)
    made = {key: _inlined(value, definitions) for key, value in kept.items()}
    if properties is not None:
        made["properties"] = {name: _inlined(value, definitions) for name, value in properties.items()}
        made.setdefault("additionalProperties", False)
    return made
