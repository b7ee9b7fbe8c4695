"""Spec of a ``Model``, read from the object.

The API server has checked it against the kind's definition, of which an older version may be installed; so all that
goes into other objects is checked here again.  A dollar sign is refused everywhere: kubelets put variables, passwords
among them, in the place of ``$(NAME)``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratos.core.placement import WorkerRole
from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.model_resources.wanted.sources import SERVED_NAME, SOURCES

GROUP, VERSION, PLURAL = "stratosserve.io", "v1alpha1", "models"
API_VERSION, KIND = f"{GROUP}/{VERSION}", "Model"
NAME = r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$"
MAX_WORKERS = 1000
DEFAULT_TEMPLATE = "default"
SIZES = ("replicas", "minReplicas", "maxReplicas")


class StatusReason(enum.StrEnum):
    """Reasons of conditions, and of the status."""

    SERVING = "Serving"
    ASLEEP = "Asleep"
    """Its pools are empty until a request comes."""
    STARTING = "Starting"
    RECORDING = "Recording"
    """A job tells the gateways of it."""
    RETIRING = "Retiring"
    """A job takes it from the gateways' list."""
    DRAINING = "Draining"
    """It is listed no more, and what runs goes on."""
    STOPPING = "Stopping"
    NONE = "NoProblem"

    INVALID_SPEC = "InvalidSpec"
    NAME_OF_VALUES = "NameBelongsToValues"
    NAME_TAKEN = "NameTaken"
    UNKNOWN_TEMPLATE = "UnknownTemplate"
    SOURCE_NOT_OFFERED = "SourceNotOffered"
    APPLY_REFUSED = "ApplyRefused"
    """The API server does not take one of its objects."""
    PODS_REFUSED = "PodsRefused"
    """A quota, an admission rule: pods cannot be made."""
    NO_ROOM = "NoRoom"
    """No node has room for a pod."""
    IMAGE_NOT_PULLED = "ImageNotPulled"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_FAILED = "SourceFailed"
    """The model could not be brought into the pod."""
    CRASH_ON_LOAD = "CrashOnLoad"
    TOO_SLOW = "StartTooSlow"
    RECORD_FAILED = "RecordFailed"
    RETIRE_FAILED = "RetireFailed"


class RefusedModel(Exception):
    """Nothing of the Model is changed while it says this.

    Args:
        reason: for its conditions.
        message: for people.
    """

    def __init__(self, reason: StatusReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """Size of a pool; ``None`` leaves it to the template."""

    replicas: int | None = None
    minimum: int | None = None
    maximum: int | None = None

    @property
    def is_off(self) -> bool:
        return self.replicas == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One Model, checked."""

    name: str
    served_name: str
    template: str
    source_kind: str
    source: Mapping[str, str]
    terms: Mapping[str, Any]
    sizes: Mapping[WorkerRole, PoolSize] = field(default_factory=dict)


def read_spec(model: Object) -> ModelSpec:
    """The spec of an object.

    Raises:
        RefusedModel: it cannot be; the message names the field.
    """
    name, spec = str(model["metadata"]["name"]), _mapping(model.get("spec"), "spec")
    if not re.match(NAME, name):
        raise _invalid("metadata.name", "has at most 32 characters of a-z 0-9 -, and begins with a letter")
    kind, source = _source(_mapping(spec.get("source"), "spec.source"))
    known = {"servedName", "source", "template", "terms", "prefill", "decode"}
    if unknown := sorted(spec.keys() - known):
        raise _invalid(f"spec.{unknown[0]}", "is no field of a Model")
    return ModelSpec(
        name=name,
        served_name=_text(spec.get("servedName") or name, SERVED_NAME, 260, "spec.servedName"),
        template=_text(spec.get("template") or DEFAULT_TEMPLATE, NAME, 32, "spec.template"),
        source_kind=kind,
        source=source,
        terms=_terms(_mapping(spec.get("terms") or {}, "spec.terms")),
        sizes={role: _size(spec.get(role.value), f"spec.{role.value}") for role in WorkerRole},
    )


def _source(said: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    if len(said) != 1:
        raise _invalid("spec.source", f"has exactly one of {', '.join(SOURCES)}")
    ((kind, value),) = said.items()
    where = f"spec.source.{kind}"
    if kind not in SOURCES:
        raise _invalid(where, f"is none of {', '.join(SOURCES)}")
    fields, given = SOURCES[kind].fields, _mapping(value, where)
    if unknown := sorted(given.keys() - fields.keys()):
        raise _invalid(f"{where}.{unknown[0]}", "is no field of this source")
    if missing := sorted(name for name, one in fields.items() if one.is_required and name not in given):
        raise _invalid(f"{where}.{missing[0]}", "is required")
    return kind, {
        name: _text(given[name], fields[name].pattern, fields[name].max_length, f"{where}.{name}") for name in given
    }


def _terms(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Texts and numbers alone; which there are is the chart's table to say, which values fit is the job's."""
    for name, value in said.items():
        if not isinstance(value, str | int | float | bool) or (isinstance(value, str) and not _is_plain(value)):
            raise _invalid(f"spec.terms.{name}", "is a number, or a text without control characters and $")
    return said


def _size(said: Any, where: str) -> PoolSize:
    given = _mapping(said or {}, where)
    if unknown := sorted(given.keys() - set(SIZES)):
        raise _invalid(f"{where}.{unknown[0]}", "is no field of a pool")
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WORKERS:
            raise _invalid(f"{where}.{name}", f"is a whole number up to {MAX_WORKERS}")
    size = PoolSize(replicas=given.get("replicas"), minimum=given.get("minReplicas"), maximum=given.get("maxReplicas"))
    if size.maximum == 0:
        raise _invalid(f"{where}.maxReplicas", "is at least 1; replicas: 0 leaves the pool out")
    return size


def _text(value: Any, pattern: str, max_length: int, where: str) -> str:
    if (
        not isinstance(value, str)
        or len(value) > max_length
        or not re.fullmatch(pattern, value)
        or not _is_plain(value)
    ):
        raise _invalid(where, f"does not match {pattern}, or has more than {max_length} characters")
    return value


def _is_plain(text: str) -> bool:
    return len(text) <= 512 and text.isprintable() and "$" not in text


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(where, "is an object")
    return value


def _invalid(where: str, why: str) -> RefusedModel:
    return RefusedModel(StatusReason.INVALID_SPEC, f"{where} {why}")
