"""Where certificates are kept: one document of named files per role, and one with the CAs and their keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"
"""Names of the files of a role; as in Secrets of type kubernetes.io/tls."""


class CertificateStore(Protocol):
    """Documents by name: a role, or "ca"."""

    def read(self, name: str) -> dict[str, bytes]:
        """The files of a document; empty when there is none."""
        ...

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace a document. Raises ``Overloaded`` when another run wrote it since it was read."""
        ...

    def remove(self, name: str) -> None:
        """Delete a document, if there is one."""
        ...


class FolderStore:
    """A folder per document, readable by this user alone; every file is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> dict[str, bytes]:
        folder = self._path / name
        return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.is_dir() else {}

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        folder = self._path / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The CAs first, the certificate last: a reader in between has a key that does not fit, and keeps the old pair.
        for file in sorted(files, key=lambda file: (file == CERTIFICATE, file == KEY)):
            temporary = folder / f".{file}.new"
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as out:
                out.write(files[file])
            temporary.replace(folder / file)

    def remove(self, name: str) -> None:
        folder = self._path / name
        if folder.is_dir():
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
