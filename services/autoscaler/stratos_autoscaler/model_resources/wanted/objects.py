"""All objects of a Model, as the chart would render them for an entry of ``models``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.model_resources.wanted.filling import digest_of, filled
from stratos_autoscaler.model_resources.wanted.sizes import sized
from stratos_autoscaler.model_resources.wanted.sources import SOURCES, Words
from stratos_autoscaler.model_resources.wanted.spec import API_VERSION, KIND, ModelSpec, RefusedModel, StatusReason
from stratos_autoscaler.model_resources.wanted.templates import Templates

MODEL_RESOURCE = "stratosserve.io/model-resource"
"""Label of all objects of a Model."""
APPLIED = "stratosserve.io/applied"
"""Digest of what was applied last."""
MANAGER = "stratosserve-models"
_MANAGED_BY = "app.kubernetes.io/managed-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelObjects:
    """Objects of one Model."""

    objects: Sequence[Object]
    """All but jobs, each with the digest of itself."""
    record: Object
    """The job that records it, whose name is to be made."""
    record_digest: str


def wanted_objects(spec: ModelSpec, templates: Templates, uid: str) -> ModelObjects:
    """Fill the chart's objects for a Model.

    Raises:
        RefusedModel: a template, a source, a term or a size that cannot be.
    """
    words = _words(spec, templates)
    found = [filled(item, words, templates.head) for item in templates.of(spec)]
    (job,) = [item for item in found if item["kind"] == "Job"]
    rest = sized([item for item in found if item["kind"] != "Job"], spec)
    record = owned(job, spec.name, uid)
    return ModelObjects(
        objects=[_marked(owned(item, spec.name, uid)) for item in rest],
        record=record,
        record_digest=digest_of(record["spec"]),
    )


def retire_job(name: str, templates: Templates, uid: str) -> Object:
    """The job that removes a Model's records, whose name is to be made."""
    words: Words = {"__MODEL__": name, "__OWNER__": f"{templates.owner}/{name}"}
    return owned(filled(templates.retire, words, templates.head), name, uid)


def owned(found: Object, name: str, uid: str) -> Object:
    """The object as one of a Model: by its label, and so that it goes when the Model has gone."""
    labels = {**found["metadata"]["labels"], _MANAGED_BY: MANAGER, MODEL_RESOURCE: name}
    # Not blocking: what the Model's end waits for, its finalizer says.
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid, "controller": True}
    return {**found, "metadata": {**found["metadata"], "labels": labels, "ownerReferences": [owner]}}


def is_owned(found: Object, uid: str) -> bool:
    """Whether an object is of the Model with this uid."""
    return any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or ())


def _marked(found: Object) -> Object:
    notes = {**(found["metadata"].get("annotations") or {}), APPLIED: digest_of(found)}
    return {**found, "metadata": {**found["metadata"], "annotations": notes}}


def _words(spec: ModelSpec, templates: Templates) -> Words:
    terms = {}
    for name, value in spec.terms.items():
        if name not in templates.terms:
            raise RefusedModel(
                StatusReason.INVALID_SPEC, f"spec.terms.{name} is none of {', '.join(sorted(templates.terms))}"
            )
        terms[templates.terms[name]] = value
    kind = SOURCES[spec.source_kind]
    content = hashlib.sha256(kind.content(spec.source).encode()).hexdigest()
    return {
        "__MODEL__": spec.name,
        "__SERVED_NAME__": spec.served_name,
        "__OWNER__": f"{templates.owner}/{spec.name}",
        "__TERMS__": json.dumps(terms, sort_keys=True, separators=(",", ":")) if terms else None,
        "__CACHE_FOLDER__": f"{spec.name}-{content[:16]}",
        **kind.words(spec.source),
    }
