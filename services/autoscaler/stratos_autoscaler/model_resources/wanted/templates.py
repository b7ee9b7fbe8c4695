"""Objects of the chart for models to come, from the ConfigMap that the chart makes (``_model-templates.tpl``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import DependencyDown
from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.model_resources.wanted.spec import ModelSpec, RefusedModel, StatusReason

FORMAT = 1
"""Of the ConfigMap: another one has words that this process does not fill."""
_TEMPLATE = "template."


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """One version of the ConfigMap."""

    version: str
    head: str
    """Beginning of names of objects."""
    owner: str
    """Head of what the records' owner is called."""
    names: frozenset[str]
    """Entries of the values' ``models``."""
    served_names: frozenset[str]
    pools: frozenset[str]
    """Ends of the names of all their Deployments."""
    terms: Mapping[str, str]
    """Name of each term in records."""
    retire: Object
    """The job that removes a Model's records."""
    objects: Mapping[tuple[str, str], Sequence[Object]]
    """By template and kind of source."""

    def of(self, spec: ModelSpec) -> Sequence[Object]:
        """Objects for a Model.

        Raises:
            RefusedModel: the values have no such template, or offer no such source.
        """
        known = sorted({name for name, _ in self.objects})
        if spec.template not in known:
            raise RefusedModel(
                StatusReason.UNKNOWN_TEMPLATE,
                f"the values have no template {spec.template!r}; there are {', '.join(known)}",
            )
        found = self.objects.get((spec.template, spec.source_kind))
        if found is None:
            offered = ", ".join(sorted(kind for name, kind in self.objects if name == spec.template))
            raise RefusedModel(
                StatusReason.SOURCE_NOT_OFFERED, f"modelResources.sources has no {spec.source_kind}; it has {offered}"
            )
        return found


def read_templates(config_map: Object) -> Templates:
    """Read a ConfigMap.

    Raises:
        DependencyDown: it is not the chart's, or that of another version.
    """
    try:
        data: Mapping[str, str] = config_map["data"]
        facts: Mapping[str, Any] = json.loads(data["facts"])
        if facts["format"] != FORMAT:
            raise ValueError(f"they have format {facts['format']}, and this autoscaler reads {FORMAT}")
        (retire,) = json.loads(data["retire"])
        objects = {}
        for key, text in data.items():
            if key.startswith(_TEMPLATE):
                name, _, kind = key.removeprefix(_TEMPLATE).partition(".")
                objects[name, kind] = json.loads(text)
        return Templates(
            version=str(config_map["metadata"].get("resourceVersion", "")),
            head=facts["head"],
            owner=facts["owner"],
            names=frozenset(facts["names"]),
            served_names=frozenset(facts["served_names"]),
            pools=frozenset(facts["pools"]),
            terms=facts["terms"],
            retire=retire,
            objects=objects,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DependencyDown(f"the templates of Models cannot be read: {type(error).__name__} {error}") from None
