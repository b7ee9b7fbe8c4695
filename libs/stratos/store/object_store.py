"""The object store contract: base weights, adapters, segments of the ledger and large responses by relative key.

A key is a relative path of ordinary names joined by "/"; a folder is the common head of keys.  Stored objects
are never trusted: sizes are bounded while reading, digests are checked by the callers that know them.  A folder is
downloaded into a sibling of its destination and renamed, so a destination is complete or absent.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stratos.common.errors import BadRequest, DependencyDown, NotFound, RequestTooLarge

MAX_KEY_CHARS = 512
MAX_FOLDER_FILES = 256
MAX_FOLDER_BYTES = 16 * 1024**3
_SEGMENT = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-+=@ ]*\Z")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object."""

    key: str
    num_bytes: int
    written_unix_s: float = 0.0
    """Seconds since the epoch at which it was written, by the store's clock."""


def is_plain_key(key: str) -> bool:
    """Whether ``key`` is a plain relative path; objects with other names, hidden ones too, are not listed."""
    return len(key) <= MAX_KEY_CHARS and all(_SEGMENT.match(segment) for segment in key.split("/"))


def check_key(key: str, param: str = "uri") -> str:
    """Check that a key is a plain relative path; returns it without a trailing "/".

    Raises:
        BadRequest: absolute, a URL, empty or "..", hidden or odd segments, too long.
    """
    plain = key.removesuffix("/")
    if not is_plain_key(plain):
        raise BadRequest(
            f"{param} must be a path relative to the object store, like adapters/my-adapter: no leading '/', "
            f"no '..', no URL, at most {MAX_KEY_CHARS} characters",
            param=param,
        )
    return plain


class ObjectStore(ABC):
    """Where files come from. Every method raises ``DependencyDown`` when the store does not answer."""

    @abstractmethod
    async def list_folder(self, folder: str) -> list[ObjectInfo]:
        """Objects below ``folder``, sorted by key, at most ``MAX_FOLDER_FILES``.

        Raises:
            NotFound: there are none.
            RequestTooLarge: there are more.
        """

    @abstractmethod
    async def list_all(self, folder: str) -> list[ObjectInfo]:
        """Every object below ``folder``, sorted by key, however many; none where there are none."""

    @abstractmethod
    async def fetch(self, key: str, path: Path, max_bytes: int) -> int:
        """Write one object to the new file ``path``; returns its size.

        Raises:
            NotFound: no such object.
            RequestTooLarge: it is larger than ``max_bytes``.
        """

    @abstractmethod
    async def read(self, key: str, offset: int, num_bytes: int) -> bytes:
        """A part of one object; fewer bytes where it ends before.

        Raises:
            NotFound: no such object.
        """

    @abstractmethod
    async def put(self, key: str, content: Path | bytes) -> None:
        """Store a file, or bytes, under ``key`` durably, replacing what was there; a reader sees all of it or none."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove one object; one that is not there is no error."""

    async def open(self) -> None:  # noqa: B027
        """Get everything ready that takes long and needs no server; the first call does it otherwise."""

    async def close(self) -> None:  # noqa: B027
        ...

    async def download_folder(
        self,
        folder: str,
        destination: Path,
        *,
        names: Collection[str] | None = None,
        max_bytes: int = MAX_FOLDER_BYTES,
    ) -> None:
        """Copy a folder to ``destination``, which appears complete or not at all.

        A destination that another download made first stays; a caller that trusts content checks its digest.

        Args:
            folder: key of the folder.
            destination: must not exist; its parent is created.
            names: only these files, relative to the folder; absent ones are left out.
            max_bytes: bound of the sum of sizes.

        Raises:
            NotFound: no such folder, or none of ``names`` in it.
            RequestTooLarge: more than ``max_bytes``.
            DependencyDown: the store does not answer, or the local disk is full.
        """
        folder = check_key(folder)
        found = {info.key[len(folder) + 1 :]: info for info in await self.list_folder(folder)}
        wanted = {name: info for name, info in found.items() if names is None or name in names}
        if not wanted:
            raise NotFound(f"the object store folder {folder!r} has none of {', '.join(sorted(names or ()))}")
        if sum(info.num_bytes for info in wanted.values()) > max_bytes:
            raise RequestTooLarge(f"the object store folder {folder!r} is larger than {max_bytes} bytes")
        try:
            await self._fetch_all(wanted, destination, max_bytes)
        except OSError as error:
            raise DependencyDown(f"no folder can be made at {destination}: {error.strerror or error}") from error

    async def _fetch_all(self, wanted: Mapping[str, ObjectInfo], destination: Path, max_bytes: int) -> None:
        destination.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        try:
            left = max_bytes
            for name, info in wanted.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                left -= await self.fetch(info.key, part / name, left)
            _publish(part, destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _publish(part: Path, destination: Path) -> None:
    part.chmod(0o755)  # mkdtemp makes it private
    try:
        part.rename(destination)
    except OSError:
        if not destination.is_dir():
            raise
