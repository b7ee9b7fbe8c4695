"""One adapter version: as a request names it, and as the registry hands it out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRef:
    """The adapter of a request; without a digest the request runs on the base model."""

    digest: str = ""
    """SHA-256 (hex) over configuration and weights; what is trusted."""
    uri: str = ""
    """Folder in the object store; only says where to look."""


BASE_MODEL = AdapterRef()
"""No adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterVersion:
    """Content that a name stood for before, and may stand for again."""

    digest: str
    base_model_digest: str
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A registered adapter; ``digest`` is what is trusted, ``uri`` only says where to look."""

    tenant: str
    """Owner; "" means every tenant."""
    name: str
    """Value of "model" in clients' requests."""
    base_model_digest: str
    """SHA-256 (hex) of the base model it was trained on."""
    uri: str
    """Folder in the object store."""
    digest: str
    """SHA-256 (hex) over configuration and weights, see ``adapter_files``."""
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Projections it changes, sorted."""
    num_bytes: int
    """Size of the weights."""
    created_unix_s: int
    """Seconds since the epoch at registration."""
    former: tuple[AdapterVersion, ...] = ()
    """Versions that the name stood for before, the last one first."""
    is_rolled_back: bool = False
    """The name went back to this version from one of those."""

    @property
    def version(self) -> AdapterVersion:
        """Content that the name stands for now."""
        return AdapterVersion(digest=self.digest, base_model_digest=self.base_model_digest, uri=self.uri)
