"""Backups in an object store: a folder each, with a manifest that is written last.

A folder without a manifest is a backup that broke off: it is never restored, and goes when a newer one is complete.
Files are checked by their digests when they come back, since what stores objects is not trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stratos.common.errors import BadRequest, NotFound
from stratos.store.object_store import ObjectStore

FOLDER = "backups"
MANIFEST = "backup.json"
LATEST = "latest"
_NAME = re.compile(r"\d{8}T\d{6}Z\Z")
_MAX_MANIFEST_BYTES = 64 * 1024


class BackupFile(BaseModel):
    """One file of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_bytes: int = Field(ge=0)
    sha256: str


class BackupManifest(BaseModel):
    """Manifest of a backup: its files with their digests."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    store_id: str
    """Id of the store that was copied."""
    files: dict[str, BackupFile]


@dataclass(frozen=True, slots=True)
class BackupFolder:
    """Folder below ``backups``."""

    name: str
    is_complete: bool
    keys: tuple[str, ...]
    num_bytes: int


class BackupStore:
    """Every method raises ``DependencyDown`` where the object store does not answer."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def write(self, now_s: float, store_id: str, files: Mapping[str, Path]) -> str:
        """Store a backup; returns its name, the time in UTC.

        Args:
            now_s: seconds since the epoch.
            store_id: of the store that was copied.
            files: by their names in the backup.
        """
        name = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        found = {file: await asyncio.to_thread(_describe, path) for file, path in files.items()}
        for file, path in files.items():
            await self._objects.put(f"{FOLDER}/{name}/{file}", path)
        manifest = BackupManifest(store_id=store_id, files=found).model_dump_json(indent=1)
        await self._objects.put(f"{FOLDER}/{name}/{MANIFEST}", manifest.encode())
        return name

    async def folders(self) -> list[BackupFolder]:
        """List all backups, also those that broke off, oldest first."""
        by_name: dict[str, dict[str, int]] = {}
        for info in await self._objects.list_all(FOLDER):
            name, _, file = info.key.removeprefix(f"{FOLDER}/").partition("/")
            if _NAME.match(name) and file:
                by_name.setdefault(name, {})[file] = info.num_bytes
        return [
            BackupFolder(name, MANIFEST in files, tuple(f"{FOLDER}/{name}/{f}" for f in files), sum(files.values()))
            for name, files in sorted(by_name.items())
        ]

    async def prune(self, num_kept: int) -> list[str]:
        """Remove all but the newest complete ones, and those that broke off before the newest; returns their names."""
        folders = await self.folders()
        complete = [folder for folder in folders if folder.is_complete]
        kept = {folder.name for folder in complete[-num_kept:]}
        newest = complete[-1].name if complete else ""
        gone = [folder for folder in folders if folder.name not in kept and folder.name < newest]
        for folder in gone:
            # The manifest goes first: what is left of a backup must not look like one.
            for key in sorted(folder.keys, key=lambda key: not key.endswith(f"/{MANIFEST}")):
                await self._objects.delete(key)
        return [folder.name for folder in gone]

    async def fetch(self, name: str, folder: Path) -> BackupManifest:
        """Write the files of a backup into a folder, checked.

        Args:
            name: of the backup, or ``latest``.
            folder: is there, and has none of these files.

        Raises:
            NotFound: there is no such backup.
            BadRequest: it is not as it was written.
        """
        complete = [found.name for found in await self.folders() if found.is_complete]
        if name == LATEST and complete:
            name = complete[-1]
        if name not in complete:
            raise NotFound(f"there is no backup {name}; there are {', '.join(complete) or 'none'}")
        raw = await self._objects.read(f"{FOLDER}/{name}/{MANIFEST}", 0, _MAX_MANIFEST_BYTES)
        try:
            manifest = BackupManifest.model_validate_json(raw)
        except ValidationError as error:
            raise BadRequest(f"the manifest of backup {name} is not whole") from error
        for file, expected in manifest.files.items():
            path = folder / Path(file).name
            await self._objects.fetch(f"{FOLDER}/{name}/{file}", path, expected.num_bytes)
            path.chmod(0o600)  # as secret as the Redis, and read as such
            if await asyncio.to_thread(_describe, path) != expected:
                raise BadRequest(f"{file} of backup {name} is not what was written")
        return manifest


def _describe(path: Path) -> BackupFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return BackupFile(num_bytes=path.stat().st_size, sha256=digest.hexdigest())
