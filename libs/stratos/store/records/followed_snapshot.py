"""Snapshot of tenants, keys and adapters in a process, and when it may believe a store: a state machine without I/O.

    EMPTY ──load begins──▶ LOADING ──load ends──▶ FOLLOWING ◀──────────────────────────┐
                                                   │  │                                │ the followed store
                              the store is silent  ▼  ▼  another store, none, or a     │ answers again
                                               STALE  FOREIGN  store that lost records ┴

A store says who it is (``Marker``) and every change names the one before it.  So a follower sees whether it has missed
something, and then reads everything again.

Two rules hold in every state: **absence deletes nothing**, only a tombstone does, and a key whose tombstone was seen
never serves again.  Of two versions of one record the newer one stays, in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from stratos.store.keys import KeyRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.values import owner_and_name


class SnapshotState(StrEnum):
    """How a snapshot stands to its store."""

    EMPTY = "empty"
    """Nothing was ever loaded: no store answered, or only one without a marker."""
    LOADING = "loading"
    """The first load runs."""
    FOLLOWING = "following"
    """Every change up to the last look is known."""
    STALE = "stale"
    """The store does not answer; what is known goes on serving."""
    FOREIGN = "foreign"
    """The answer comes from another store, from one without a marker, or from one that has lost records."""


class Look(StrEnum):
    """Reading that a follower has to do after a look at the marker."""

    NOTHING = "nothing"
    CHANGES = "changes"
    """Everything after ``position``."""
    EVERYTHING = "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Marker of a store: its own account of its identity and its last change."""

    store_id: str
    """Random, written once."""
    revision: int
    """Version of the last change; 0 before the first."""
    num_records: int
    """Records that the store had after the last change, tombstones included; they never become fewer."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that could not be read."""

    kind: Kind
    id: str
    reason: str
    """Never the content."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the change stream."""

    revision: int
    after: int
    """Revision of the change before; another one than expected means that changes were missed."""
    content: Record | Malformed


@dataclass(slots=True)
class _Load:
    marker: Marker
    seen: set[tuple[Kind, str]] = field(default_factory=set)
    outdated: set[tuple[Kind, str]] = field(default_factory=set)
    """Records of which a newer version is known, or that they were destroyed for good."""


class FollowedSnapshot:
    """All records that a process knows, and its position in the changes of the store it follows.

    Times are seconds of the caller's clock.
    """

    def __init__(self) -> None:
        self.store_id: str | None = None
        """The store that is followed; ``None`` until the first load or restored copy."""
        self.position: int | None = None
        """Revision up to which everything is known; ``None`` where everything must be read again."""
        self.is_complete = False
        """A whole load was seen, by this process or by the one whose copy it took."""
        self.num_missing = 0
        """Records known here that the last whole read of the store did not have, or had in an older version."""
        self.num_merged = 0
        """Versions of records that were taken."""
        self.num_cleared = 0
        """How often all of them were given up."""
        self.malformed: dict[tuple[Kind, str], str] = {}
        """Records that cannot be read now, and why."""
        self._records: dict[tuple[Kind, str], dict[str, Record]] = {}
        self._keys: dict[str, dict[str, Record]] = {}
        self._listeners: dict[Kind, list[Callable[[Record], None]]] = {}
        self._load: _Load | None = None
        self._confirmed_s: float | None = None
        self._is_in_contact = False
        self._is_foreign = False

    @property
    def version(self) -> tuple[int, int]:
        """Another one for each state of the records."""
        return self.num_merged, self.num_cleared

    @property
    def state(self) -> SnapshotState:
        """How the snapshot stands to its store now."""
        if self._is_foreign and self.store_id is not None:
            return SnapshotState.FOREIGN
        if not self.is_complete:
            return SnapshotState.EMPTY if self._load is None else SnapshotState.LOADING
        return SnapshotState.FOLLOWING if self._is_in_contact else SnapshotState.STALE

    def age_s(self, now: float) -> float:
        """Seconds since the followed store last confirmed all that is known; infinite where it never did."""
        return float("inf") if self._confirmed_s is None else max(0.0, now - self._confirmed_s)

    def get(self, kind: Kind, record_id: str) -> Record | None:
        """The newest version known of a record, which may be a tombstone."""
        owner, name = owner_and_name(record_id)
        return self._records.get((kind, owner), {}).get(name)

    def of_owner(self, kind: Kind, owner: str) -> Mapping[str, Record]:
        """Records of an owner by name, tombstones included."""
        return self._records.get((kind, owner), {})

    def of_kind(self, kind: Kind) -> list[Record]:
        """Records of a kind by id, tombstones left out."""
        groups = [group for (found, _), group in self._records.items() if found is kind]
        return sorted((r for group in groups for r in group.values() if not r.is_deleted), key=attrgetter("id"))

    def keys_of(self, tenant: str) -> list[Record]:
        """Keys of all tenants that ever had a name by id, revoked ones included."""
        return sorted(self._keys.get(tenant, {}).values(), key=attrgetter("id"))

    def key_tenants(self) -> list[str]:
        """Names of all tenants that ever had a key."""
        return sorted(self._keys)

    def records(self) -> Iterable[Record]:
        """Everything that is known, tombstones included."""
        return (record for group in self._records.values() for record in group.values())

    def num_records(self) -> int:
        """How many records are known, tombstones included; may be asked from another thread."""
        return sum(map(len, list(self._records.values())))

    def observe(self, marker: Marker | None, now: float) -> Look:
        """Take a look at a store's marker; says what has to be read next."""
        if marker is None or self.store_id not in (None, marker.store_id):
            return self._refuse()
        if self.position is None or marker.revision < self.position:
            return Look.EVERYTHING
        if marker.revision > self.position:
            return Look.CHANGES
        self._confirm(now)
        return Look.NOTHING

    def read(self, changes: Sequence[Change], marker: Marker, now: float) -> bool:
        """Take the changes after ``position``; false where some are missing and everything must be read."""
        for change in changes:
            if change.after != self.position:
                break
            self.merge(change.content)
            self.position = change.revision
        if self.position is None or self.position < marker.revision:
            self.position, self._is_in_contact = None, False
            return False
        self._confirm(now)
        return True

    def begin_load(self, marker: Marker) -> None:
        """A read of everything begins; ``marker`` was read before it."""
        if self.store_id is None:  # remains of a load that another store interrupted
            self._clear()
            self.malformed.clear()
        self._load = _Load(marker)

    def end_load(self, now: float) -> bool:
        """Everything was read; false where the store has fewer records than it says, which is an outage.

        Changes made during the load have a higher revision than its marker and are read next.
        """
        load = self._load
        assert load is not None, "end_load follows begin_load"
        self._load = None
        if len(load.seen) < load.marker.num_records:
            self._refuse()
            return False
        self.store_id, self.position, self.is_complete = load.marker.store_id, load.marker.revision, True
        self.malformed = {key: reason for key, reason in self.malformed.items() if key in load.seen}
        num_absent = sum((record.kind, record.id) not in load.seen for record in self.records())
        self.num_missing = num_absent + len(load.outdated)
        self._confirm(now)
        return True

    def merge(self, content: Record | Malformed) -> None:
        """Take one record where it is newer than what is known; a malformed one leaves what is known."""
        key = (content.kind, content.id)
        if self._load is not None:
            self._load.seen.add(key)
        if isinstance(content, Malformed):
            self.malformed[key] = content.reason
            return
        self.malformed.pop(key, None)
        owner, name = owner_and_name(content.id)
        group = self._records.setdefault((content.kind, owner), {})
        known = group.get(name)
        if known is None or _replaces(content, known):
            group[name] = content
            self.num_merged += 1
            for listener in self._listeners.get(content.kind, ()):
                listener(content)
            if content.kind is Kind.KEY:
                self._keys.setdefault(_tenant_of_key(known or content), {})[content.id] = content
        elif self._load is not None and content.version != known.version:
            self._load.outdated.add(key)

    def on_record(self, kind: Kind, listener: Callable[[Record], None]) -> None:
        """Call ``listener`` with each version of a record of a kind that is taken from now on; it must not raise.

        A record that a reload of everything brings again unchanged may be told again.
        """
        self._listeners.setdefault(kind, []).append(listener)

    def lose(self) -> None:
        """The store did not answer; a load that runs is given up."""
        self._load = None
        self._is_in_contact = False

    def restore(self, store_id: str, revision: int, records: Iterable[Record], confirmed_s: float) -> None:
        """Start from a copy that another process, or this one in an earlier life, has made of its snapshot.

        Args:
            store_id: the store that was followed.
            revision: position in its changes.
            records: all of them.
            confirmed_s: when the store last confirmed them.
        """
        assert not self.is_complete, "a copy is for a process that knows nothing"
        self._clear()
        for record in records:
            self.merge(record)
        self.store_id, self.position, self.is_complete = store_id, revision, True
        self._confirmed_s = confirmed_s

    def _clear(self) -> None:
        self.num_cleared += 1
        self._records.clear()
        self._keys.clear()

    def _refuse(self) -> Look:
        self._load = None
        self._is_foreign, self._is_in_contact, self.position = True, False, None
        return Look.NOTHING

    def _confirm(self, now: float) -> None:
        self._confirmed_s, self._is_in_contact, self._is_foreign = now, True, False


def _tenant_of_key(record: Record) -> str:
    return record.value.tenant if isinstance(record.value, KeyRecord) else str(record.remains.get("tenant", ""))


def _replaces(content: Record, known: Record) -> bool:
    """Whether a version is the one to know: the newer one, but what is final replaces any.

    A Redis that took over without the last change, and whose clock is behind, gives a revocation the lower version.
    """
    if _is_final(known):
        return content.is_deleted and content.version > known.version
    return _is_final(content) or content.version > known.version


def _is_final(record: Record) -> bool:
    """A revoked key stays revoked, a destroyed one destroyed; a deleted adapter's name may be registered again."""
    return record.is_deleted and record.kind in (Kind.KEY, Kind.DATA_KEY)
