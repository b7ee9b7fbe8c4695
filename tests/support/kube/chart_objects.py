"""What is looked at in rendered objects: pods and containers of any kind, and variables as a process reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
_FIELDS = {
    "status.podIP": "10.0.0.7",
    "metadata.name": "decode-base-5d4f8-x7k2p",
    "metadata.labels['topology.kubernetes.io/zone']": "",
    "metadata.labels['topology.kubernetes.io/region']": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod template, or a pod."""

    owner: str
    """Kind and name."""
    labels: dict[str, str]
    spec: Object

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]


def pods(objects: Iterable[Object]) -> Iterator[Pod]:
    """Those of Deployments, Jobs, CronJobs and bare ones."""
    for found in objects:
        spec = found.get("spec") or {}
        template = found if found["kind"] == "Pod" else spec.get("template")
        if found["kind"] == "CronJob":
            template = spec["jobTemplate"]["spec"]["template"]
        if template and "spec" in template:
            owner = f"{found['kind']} {found['metadata']['name']}"
            yield Pod(owner=owner, labels=template["metadata"]["labels"], spec=template["spec"])


def one(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The object of a kind and name."""
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def kinds(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    """All objects of a kind by name."""
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


def container(objects: Iterable[Object], deployment: str) -> Object:
    """The only container of a Deployment."""
    (found,) = one(objects, "Deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def pod_spec(objects: Iterable[Object], deployment: str) -> Object:
    """What a Deployment's pods are made from."""
    return dict(one(objects, "Deployment", deployment)["spec"]["template"]["spec"])


def variables(found: Object) -> dict[str, str]:
    """The environment of a container; a Secret's key is a text that fits everywhere."""
    values: dict[str, str] = {}
    for entry in found.get("env", []):
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            key = source["secretKeyRef"]["key"]
            values[entry["name"]] = "redis://:secret@host:6379/0" if "url" in key else f"secret of the key {key}"
        elif "fieldRef" in source:
            values[entry["name"]] = _FIELDS[source["fieldRef"]["fieldPath"]]
        elif "resourceFieldRef" in source:
            values[entry["name"]] = "4"
        else:
            values[entry["name"]] = _expanded(entry.get("value", ""), values)
    return values


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector selects."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _expanded(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"$({name})", value)
    return text
