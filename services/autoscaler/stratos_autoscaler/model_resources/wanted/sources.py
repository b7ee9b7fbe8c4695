"""Where a model may come from: fields of each kind of source, and the words of the chart's objects that they fill.

Another kind is another entry of ``SOURCES``, and a line of the chart's ``stratos.templateSources``.  The definition of
the kind ``Model`` is made from the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Words = dict[str, str | None]
"""Text for each word; ``None`` leaves out what holds the word."""
PATH = r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?$"
"""Folders below another: no part begins with a dot, so none leads upwards."""
IMAGE = r"^[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?$"
ABSOLUTE = r"^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+/?$"
CLAIM = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
SERVED_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63}){0,3}$"
"""Names that gateways serve, and of the registry."""
DIGEST = r"^[0-9a-f]{64}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceField:
    """One text of a source."""

    pattern: str
    text: str
    """Description for people."""
    max_length: int = 253
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One kind of source."""

    text: str
    fields: Mapping[str, SourceField]
    words: Callable[[Mapping[str, str]], Words]
    """Made of the texts that a Model has for the fields."""
    content: Callable[[Mapping[str, str]], str] = lambda said: ""
    """Text that tells one content from another, as the chart's ``stratos.cacheFolder`` makes it; "" is never cached."""


def _object_store(said: Mapping[str, str]) -> Words:
    return {"__PREFIX__": said["prefix"], "__DIGEST__": said["digest"]}


def _registry(said: Mapping[str, str]) -> Words:
    return {"__PUBLISHED__": said["name"], "__DIGEST__": said["digest"]}


def _claim(said: Mapping[str, str]) -> Words:
    return {"__CLAIM__": said["name"], "__CLAIM_PATH__": said.get("path", "").strip("/") or None}


def _image(said: Mapping[str, str]) -> Words:
    return {"__IMAGE__": said["reference"], "__IMAGE_PATH__": said.get("path", "/model").rstrip("/")}


def _image_volume(said: Mapping[str, str]) -> Words:
    folder = said.get("path", "").strip("/")
    return {"__IMAGE__": said["reference"], "/__FOLDER__": f"/{folder}" if folder else ""}


_REFERENCE = SourceField(
    pattern=IMAGE,
    max_length=512,
    is_required=True,
    text="The whole reference; image.registry of the values is not put before it.",
)
SOURCES: Mapping[str, SourceKind] = {
    "objectStore": SourceKind(
        text="A folder of the release's object store, as `stratos models upload` wrote it.",
        fields={
            "prefix": SourceField(
                pattern=PATH, max_length=512, is_required=True, text="Below objectStore.url of the values."
            ),
            "digest": SourceField(
                pattern=DIGEST,
                max_length=64,
                is_required=True,
                text="SHA-256 of the model, which is checked; `stratos models upload` prints it.",
            ),
        },
        words=_object_store,
        content=lambda said: f"{said['prefix']} {said['digest']}",
    ),
    "registry": SourceKind(
        text="A revision of the release's registry, which workers stream.",
        fields={
            "name": SourceField(
                pattern=SERVED_NAME, max_length=200, is_required=True, text="Under which it is published."
            ),
            "digest": SourceField(
                pattern=DIGEST,
                max_length=64,
                is_required=True,
                text="The revision, as `stratos models publish` printed it behind the @.",
            ),
        },
        words=_registry,
        content=lambda said: f"registry:{said['name']}@{said['digest']} ",
    ),
    "claim": SourceKind(
        text="A volume of the namespace, mounted read-only.",
        fields={
            "name": SourceField(pattern=CLAIM, is_required=True, text="Of the PersistentVolumeClaim."),
            "path": SourceField(pattern=PATH, max_length=512, text="Folder of the model in the volume."),
        },
        words=_claim,
    ),
    "image": SourceKind(
        text="An image with cp, which copies the model into the pod.",
        fields={
            "reference": _REFERENCE,
            "path": SourceField(
                pattern=ABSOLUTE, max_length=512, text="Folder of the model in the image; /model without it."
            ),
        },
        words=_image,
    ),
    "imageVolume": SourceKind(
        text="An image that is mounted as a volume, of Kubernetes 1.35.",
        fields={
            "reference": _REFERENCE,
            "path": SourceField(pattern=PATH, max_length=512, text="Folder of the model in the image."),
        },
        words=_image_volume,
    ),
}
