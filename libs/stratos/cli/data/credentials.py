"""Pepper, API key and store id of a data directory: made once, kept with mode 0600, shared by all its runs."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field

from stratos.cli.data.folder import DataDir, write_json_atomically
from stratos.common.errors import BadRequest


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


def save_credentials(data: DataDir, credentials: Credentials) -> None:
    """Keep the credentials for the next run."""
    write_json_atomically(data.credentials_file, asdict(credentials), mode=0o600)
