"""The manifest of a published revision: its files in chunks with digests, and facts of the model.

Its name is the SHA-256 of its bytes, so one that was altered is found.  Its chunks are the pieces over which the
model's digest is defined (``core.files.digest``): the digest follows from the manifest, without a byte of weights.
Chunk ``i`` of a file begins at ``i * CHUNK_BYTES``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.digest import PIECE_BYTES, digest_of_pieces, is_digest
from stratos.core.files.model_files import CONFIG_NAME
from stratos.core.files.model_texts import is_text_name
from stratos.store.models.model_record import ModelFacts
from stratos.store.object_store import is_plain_key

CHUNK_BYTES = PIECE_BYTES
MAX_MANIFEST_BYTES = 64 << 20
"""A model of 4 TB has 8 MiB of digests."""
MAX_FILES = 4096
WEIGHTS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """One file of a model."""

    name: str
    """Relative to the model folder."""
    num_bytes: Annotated[int, Ge(0)]
    chunks: tuple[str, ...]
    """SHA-256 (hex) of each chunk, the last of which may be shorter."""

    def size_of(self, index: int) -> int:
        """Bytes of a chunk."""
        return min(CHUNK_BYTES, self.num_bytes - index * CHUNK_BYTES)


@dataclass(frozen=True, kw_only=True)
class ModelManifest:
    """A revision as it was published."""

    format: Literal[1] = 1
    digest: str
    """SHA-256 (hex) of configuration and weights, as workers say it: the revision."""
    text_digest: str
    """SHA-256 (hex) of what gateways read of it."""
    tokenizer_digest: str
    """SHA-256 (hex) of ``tokenizer.json`` alone."""
    created_unix_s: Annotated[int, Ge(0)]
    """Seconds since the epoch at which it was published."""
    facts: ModelFacts
    files: tuple[PublishedFile, ...]

    @cached_property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.num_bytes for file in self.files)

    def encoded(self) -> bytes:
        """The bytes that are stored."""
        return json.dumps(_ADAPTER.dump_python(self, mode="json"), indent=1, sort_keys=True).encode()


_ADAPTER = TypeAdapter(with_config(ConfigDict(extra="forbid"))(ModelManifest))


def chunk_key(digest: str) -> str:
    """Where a chunk lies in the object store."""
    return f"registry/chunks/{digest[:2]}/{digest}"


def is_published_name(name: str) -> bool:
    """Whether a file of a model folder is published: what gateways read, weights in safetensors, and their index."""
    is_weight = name.endswith(WEIGHTS_SUFFIX) and "/" not in name
    return is_plain_key(name) and (is_text_name(name) or is_weight or name.endswith(INDEX_SUFFIX))


def weights_digest(files: tuple[PublishedFile, ...]) -> str:
    """The digest of the model that these files are."""
    by_name = {file.name: file for file in files}
    names = [CONFIG_NAME, *sorted(name for name in by_name if name.endswith(WEIGHTS_SUFFIX))]
    hashed = [by_name[name] for name in names]
    return digest_of_pieces((file.name, file.num_bytes, map(bytes.fromhex, file.chunks)) for file in hashed)


def decode_manifest(content: bytes, name: str) -> ModelManifest:
    """The manifest that was stored under a name.

    Args:
        content: bytes of the object.
        name: SHA-256 (hex) under which it lies.

    Raises:
        InvalidCheckpoint: it was altered, or its files do not add up to its digest.
    """
    if hashlib.sha256(content).hexdigest() != name:
        raise InvalidCheckpoint(
            f"the manifest {name[:12]} was altered: its bytes have another digest than its name; publish the model "
            "again with --repair"
        )
    return read_manifest(content, f"the manifest {name[:12]}")


def read_manifest(content: bytes, what: str) -> ModelManifest:
    """A manifest whose parts agree; raises ``InvalidCheckpoint``."""
    try:
        found: Any = _ADAPTER.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidCheckpoint(f"{what} cannot be read: {where}: {first['msg']}") from None
    manifest: ModelManifest = found
    check_manifest(manifest, what)
    return manifest


def check_manifest(manifest: ModelManifest, what: str) -> None:
    """Refuse a manifest whose parts contradict each other; raises ``InvalidCheckpoint``."""
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or len(names) > MAX_FILES:
        raise InvalidCheckpoint(f"{what} names a file twice, or more than {MAX_FILES}")
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
    if both := sorted(folders & set(names)):
        raise InvalidCheckpoint(f"{what} names {both[0][:80]!r} as a file and as a folder")
    if CONFIG_NAME not in names or not any(name.endswith(WEIGHTS_SUFFIX) for name in names):
        raise InvalidCheckpoint(f"{what} has no {CONFIG_NAME}, or no weights in safetensors")
    for file in manifest.files:
        if not is_published_name(file.name):
            raise InvalidCheckpoint(f"{what} names {file.name[:80]!r}, which is no file of a published model")
        if len(file.chunks) != -(-file.num_bytes // CHUNK_BYTES) or not all(map(is_digest, file.chunks)):
            raise InvalidCheckpoint(
                f"{what}: {file.name} has {file.num_bytes} bytes and {len(file.chunks)} chunks of {CHUNK_BYTES}, "
                "which do not add up"
            )
    if weights_digest(manifest.files) != manifest.digest:
        raise InvalidCheckpoint(f"{what}: its chunks do not add up to the digest {manifest.digest[:12]}")
