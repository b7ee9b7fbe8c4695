"""The audit log: who changed what, and how it was before and after. Entries are only ever appended.

An entry is written in the same transaction as the change that it tells of (``scripts.WRITE``), so there is no change
without one.  It never holds a MAC, a salt or the text of a key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stratos.store.records.values import SECRET_FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change."""

    actor: str
    """Who asked for it: "key:<id>", "jwt:<issuer>#<subject>", "cli:<user>", "lora-registry"."""
    action: str
    """Such as "tenant.suspend"."""
    kind: str
    id: str
    """Id of the record."""
    before: Mapping[str, Any] | None
    """``None`` where there was nothing."""
    after: Mapping[str, Any] | None
    """``None`` where nothing is left."""
    tenant: str = ""
    """Name of whose record it is; empty for those of the platform."""
    tenant_id: str = ""
    """Id of that tenant, by which alone it sees the entry; older entries have none."""
    entry_id: str = ""
    """Id in the stream: milliseconds since the epoch, and a number; given at the write."""

    def as_text(self) -> str:
        """The form in which it is stored."""
        fields = asdict(self)
        del fields["entry_id"]
        return json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some entries, oldest first."""

    entries: list[AuditEntry]
    next_after: str | None
    """Id after which the next page begins; ``None`` at the end."""


def parse_entry(entry_id: str, text: str) -> AuditEntry | None:
    """An entry as stored; ``None`` where it cannot be read."""
    try:
        return AuditEntry(**json.loads(text), entry_id=entry_id)
    except (ValueError, TypeError):
        return None


def shown_value(text: str | None) -> dict[str, Any] | None:
    """The value of a record's text, or of a body, as the log shows it; ``None`` for a tombstone and for nothing."""
    try:
        body = json.loads("{" + (text or "").partition("{")[2])
    except ValueError:
        return None
    if body.get("deleted") is True or not isinstance(value := body.get("value"), dict):
        return None
    return {name: value[name] for name in value if name not in SECRET_FIELDS}
