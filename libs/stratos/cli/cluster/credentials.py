"""Credentials of a release in a Secret of the cluster: made there once, by a job, and never changed by it again.

A chart that draws them at every rendering would replace the pepper of all API keys whenever it is applied.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from stratos.common.errors import BadRequest
from stratos.store.data_keys import KEY_BYTES
from stratos.store.keys import mint_key

MAKERS: Mapping[str, Callable[[], str]] = {
    "key-pepper": lambda: secrets.token_hex(24),
    "platform-key": lambda: secrets.token_hex(KEY_BYTES),
    "redis-password": lambda: secrets.token_hex(16),
    "object-store-key": lambda: secrets.token_hex(20),
    "api-key": mint_key,
    "admin-key": mint_key,
}
"""What each key of the Secret is made by. Passwords hold no character that a URL would have to encode."""


class SecretDocument(Protocol):
    """One Secret; ``stratos.pki.kubernetes_secrets.SecretStore`` has them by name."""

    def read(self, name: str) -> dict[str, bytes]:
        """Its values; empty where it is not there."""
        ...

    def write(self, name: str, files: Mapping[str, bytes]) -> None:
        """Replace the version that was read."""
        ...


def complete_credentials(store: SecretDocument, name: str, wanted: Collection[str]) -> list[str]:
    """Make the keys of a Secret that are missing, and the Secret where it is; returns what was made.

    Raises:
        BadRequest: a key that nothing makes.
        Overloaded: another run wrote the Secret in the meantime; again then.
    """
    if unknown := sorted(set(wanted) - MAKERS.keys()):
        raise BadRequest(f"nothing makes {', '.join(unknown)}; there are {', '.join(MAKERS)}", param="--make")
    known = store.read(name)
    made = [key for key in wanted if not known.get(key)]
    if made:
        store.write(name, {**known, **{key: MAKERS[key]().encode() for key in made}})
    return made
