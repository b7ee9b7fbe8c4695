"""A snapshot as text: the copy that a gateway keeps on its disk, gives to another one, and that an export writes.

JSON lines: a head {"format", "store_id", "revision", "confirmed_unix_s", "made_unix_s", "num_records"}, then [kind, id,
text] of each record.  It holds MACs, cache salts and wrapped data keys, no key that opens anything, and its
file is for its owner alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.common.files import replace_file
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import read_record

_FORMAT = 1
_KINDS = frozenset(Kind)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCopy:
    """All records of a store at one moment."""

    store_id: str
    revision: int
    confirmed_unix_s: float
    """When the store last confirmed them; seconds since the epoch."""
    made_unix_s: float | None = None
    """When the copy was made, by the same clock; an older version does not say it."""
    records: Sequence[Record] = field(repr=False)

    @property
    def age_s(self) -> float | None:
        """How old it was when it was made, a duration that means the same everywhere."""
        return None if self.made_unix_s is None else max(0.0, self.made_unix_s - self.confirmed_unix_s)


def copy_of(snapshot: FollowedSnapshot, age_s: float, unix_s: float) -> SnapshotCopy | None:
    """A copy of a snapshot; ``None`` before its first load.

    Args:
        snapshot: what is copied.
        age_s: of the snapshot, now.
        unix_s: now, seconds since the epoch.
    """
    if not snapshot.is_complete or snapshot.store_id is None:
        return None
    return SnapshotCopy(
        store_id=snapshot.store_id,
        revision=snapshot.position or 0,
        confirmed_unix_s=unix_s - age_s,
        made_unix_s=unix_s,
        records=list(snapshot.records()),
    )


def dump_copy(copy: SnapshotCopy) -> bytes:
    """The copy as text."""
    head = {
        "format": _FORMAT,
        "store_id": copy.store_id,
        "revision": copy.revision,
        "confirmed_unix_s": copy.confirmed_unix_s,
        "made_unix_s": copy.made_unix_s,
        "num_records": len(copy.records),
    }
    lines = [json.dumps(head), *(json.dumps([r.kind.value, r.id, r.text]) for r in copy.records)]
    return ("\n".join(lines) + "\n").encode()


def parse_copy(content: bytes) -> SnapshotCopy:
    """The copy that a text holds, without records that only a newer version knows.

    Raises:
        BadRequest: it is no copy, or not all of one.
    """
    try:
        head, *lines = [json.loads(line) for line in content.decode().splitlines()]
        if head["format"] != _FORMAT or head["num_records"] != len(lines):
            raise ValueError("another format, or not all of it")
        ours = [(Kind(kind), *rest) for kind, *rest in lines if kind in _KINDS]
        if len(ours) < len(lines):
            _log.warning("a copy has %d records of kinds that this version does not know", len(lines) - len(ours))
        found = [read_record(kind, str(record_id), str(text)) for kind, record_id, text in ours]
        return SnapshotCopy(
            store_id=str(head["store_id"]),
            revision=int(head["revision"]),
            confirmed_unix_s=float(head["confirmed_unix_s"]),
            made_unix_s=None if head.get("made_unix_s") is None else float(head["made_unix_s"]),
            records=[record for record in found if isinstance(record, Record)],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"this is not a copy of a snapshot ({type(error).__name__})") from None


def save_copy(copy: SnapshotCopy, path: Path) -> None:
    """Write a copy to a file of mode 0600; a reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, dump_copy(copy), mode=0o600, is_synced=True)


def load_copy(path: Path) -> SnapshotCopy | None:
    """The copy in a file; ``None`` where there is no file.

    Raises:
        BadRequest: it is no copy, or another user may have written it: it decides which keys are accepted.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise BadRequest(f"{path} must belong to this user and have mode 0600")
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
    try:
        return parse_copy(content)
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}") from None
