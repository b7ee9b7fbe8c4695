"""Which revisions are published, by name and digest: asked of the object store, which alone knows.

A reference is ``registry:NAME@DIGITS``: at least eight digits of the model's digest, or none for the newest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratos.common.errors import BadRequest, InvalidCheckpoint, NotFound
from stratos.store.models.forms import check_model_name
from stratos.store.object_store import ObjectStore
from stratos.store.registry.manifest import MAX_MANIFEST_BYTES, ModelManifest, decode_manifest

SCHEME = "registry:"
FOLDER = "registry/models"
_ALL_DIGITS = 64
_DIGITS = re.compile(r"[0-9a-f]{8,64}\Z")
_KEY = re.compile(r"([0-9a-f]{64})/([0-9a-f]{64})\.json\Z")


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A published revision as people and settings name it."""

    name: str
    digits: str = ""
    """First digits of the model's digest; empty is the newest revision."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.name}{'@' if self.digits else ''}{self.digits}"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A revision that is there."""

    name: str
    manifest: ModelManifest
    manifest_digest: str
    """SHA-256 (hex) of the manifest."""

    @property
    def reference(self) -> str:
        """Text that means this revision alone."""
        return str(ModelReference(self.name, self.manifest.digest))


def is_reference(text: str) -> bool:
    """Whether a text names a published model, and no folder."""
    return text.startswith(SCHEME)


def parse_reference(text: str, param: str = "source") -> ModelReference:
    """The reference in a text.

    Raises:
        BadRequest: it is none.
    """
    name, has_digits, digits = text.removeprefix(SCHEME).partition("@")
    if not text.startswith(SCHEME) or bool(has_digits) != bool(_DIGITS.match(digits)):
        raise BadRequest(
            f"{text[:120]!r} is no reference: write {SCHEME}NAME, or {SCHEME}NAME@ and 8 to 64 digits", param=param
        )
    return ModelReference(check_model_name(name), digits)


def manifest_key(name: str, digest: str, manifest_digest: str) -> str:
    """Where the manifest of a revision lies in the object store."""
    return f"{_folder(name)}/{digest}/{manifest_digest}.json"


async def list_published(store: ObjectStore, name: str, digits: str = "") -> list[PublishedModel]:
    """Revisions of a name, newest first; none where there are none.

    Args:
        store: the object store.
        name: of the model.
        digits: that the digests begin with; a whole digest is found however many revisions the name has.

    Raises:
        InvalidCheckpoint: a manifest was altered.
        RequestTooLarge: the name has more revisions than a folder may have files.
        DependencyDown: the store does not answer.
    """
    found: dict[str, PublishedModel] = {}
    for key, digest, manifest_digest in await list_manifests(store, name, digits):
        if digest in found:
            continue  # of two equal ones that were published at a time either will do
        if (one := await read_published(store, name, key, digest, manifest_digest)) is not None:
            found[digest] = one
    return sorted(found.values(), key=lambda one: (-one.manifest.created_unix_s, one.manifest.digest))


async def list_manifests(store: ObjectStore, name: str, digits: str = "") -> list[tuple[str, str, str]]:
    """Key, digest of the model and digest of the manifest, of all manifests of a name; raises as ``list_published``."""
    folder = _folder(check_model_name(name))
    within = f"{folder}/{digits}" if len(digits) == _ALL_DIGITS else folder
    try:
        keys = [info.key for info in await store.list_folder(within)]
    except NotFound:
        return []
    matches = [(key, _KEY.match(key.removeprefix(f"{folder}/"))) for key in keys]
    return [(key, match[1], match[2]) for key, match in matches if match is not None and match[1].startswith(digits)]


async def read_published(
    store: ObjectStore, name: str, key: str, digest: str, manifest_digest: str
) -> PublishedModel | None:
    """The revision that a manifest says, ``None`` where that is gone by now; raises as ``list_published``."""
    try:
        content = await store.read(key, 0, MAX_MANIFEST_BYTES)
    except NotFound:
        return None
    manifest = decode_manifest(content, manifest_digest)
    if manifest.digest != digest:
        raise InvalidCheckpoint(f"{key} is the manifest of another model, {manifest.digest[:12]}")
    return PublishedModel(name, manifest, manifest_digest)


async def find_published(store: ObjectStore, reference: ModelReference) -> PublishedModel:
    """The revision that a reference names.

    Raises:
        NotFound: there is none; what was not published to its end does not exist.
        BadRequest: several begin with these digits.
        InvalidCheckpoint, DependencyDown: as ``list_published``.
    """
    found = await list_published(store, reference.name, reference.digits)
    if not found:
        raise NotFound(
            f"{reference} is not published, or was not to its end; "
            f"`stratos models published {reference.name}` lists what is there"
        )
    if reference.digits and len(found) > 1:
        raise BadRequest(f"{reference}: {len(found)} revisions begin with these digits; give more", param="source")
    return found[0]


def _folder(name: str) -> str:
    """Folder of a name's manifests; no part of a name begins so, thus none of ``NAME/OTHER`` lies in it."""
    return f"{FOLDER}/{name}/-"
