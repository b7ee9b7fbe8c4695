"""Pepper, API key, store id and platform key of a data directory: made once, kept with mode 0600, for all its runs."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from stratos.cli.data.folder import DataDir, write_json_atomically
from stratos.common.errors import BadRequest
from stratos.store.data_keys import KEY_BYTES, parse_platform_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Secrets of a laptop platform."""

    pepper: str = field(repr=False)
    """Key of the HMAC that API keys are stored under."""
    api_key: str = field(default="", repr=False)
    """Printed by ``stratos up``; empty until the first start has made it."""
    store_id: str = ""
    """Id of the store that keeps tenants, keys and adapters; empty until the first start has set it up."""


def load_credentials(data: DataDir) -> Credentials:
    """Read the credentials of a data directory, or make a pepper."""
    path = data.credentials_file
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(**{name: str(content[name]) for name in ("pepper", "api_key", "store_id")})
    except FileNotFoundError:
        credentials = Credentials(pepper=secrets.token_hex(32))
        save_credentials(data, credentials)
        return credentials
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{path} cannot be read ({error}); delete it, and new credentials are made") from error


def load_platform_key(data: DataDir) -> str:
    """The platform key of a data directory, made at the first call: what wraps the data keys of its tenants.

    Raises:
        BadRequest: its file cannot be read, or another user may.
    """
    path = data.platform_key_file
    try:
        if not os.path.lexists(path):
            _make_private(path, secrets.token_hex(KEY_BYTES))
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from error
    return _read_private(path)


def _make_private(path: Path, text: str) -> None:
    """Make a file with all of its text, or none; where another process was quicker, its file stays."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}-") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what it wraps must not be on the disk before its name
    finally:
        os.close(descriptor)


def _read_private(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise BadRequest(f"{path} must have mode 0600: it opens what is kept of every tenant")
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
    parse_platform_key(text)
    return text


def save_credentials(data: DataDir, credentials: Credentials) -> None:
    """Keep the credentials for the next run."""
    write_json_atomically(data.credentials_file, asdict(credentials), mode=0o600)
