"""The snapshot's rules: absence deletes nothing, tombstones do, another store is an outage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.store.records.followed_snapshot import Change, FollowedSnapshot, Look, Malformed, Marker, SnapshotState
from stratos.store.records.record import Kind, Record, make_body, parse_record

STORE = "store-a"


def key_record(key_id: str, version: int, *, is_deleted: bool = False) -> Record:
    value = {"tenant": "acme", "name": "k", "mac": "ab" * 32, "pepper_id": "1"}
    return parse_record(Kind.KEY, key_id, f"{version} {make_body(value, is_deleted=is_deleted)}")


def tenant_record(name: str, version: int, *, plan: str) -> Record:
    value = {"cache_salt": "ab" * 32, "plan": plan}
    return parse_record(Kind.TENANT, name, f"{version} {make_body(value)}")


def marker(revision: int, num_records: int = 0, store_id: str = STORE) -> Marker:
    return Marker(store_id=store_id, revision=revision, num_records=num_records)


def load(snapshot: FollowedSnapshot, found: Marker, records: Sequence[Record | Malformed], now: float = 0.0) -> bool:
    snapshot.begin_load(found)
    for record in records:
        snapshot.merge(record)
    return snapshot.end_load(now)


def loaded(*records: Record, revision: int = 10) -> FollowedSnapshot:
    snapshot = FollowedSnapshot()
    assert snapshot.observe(marker(revision), 0.0) is Look.EVERYTHING
    assert load(snapshot, marker(revision, len(records)), records)
    return snapshot


def serves(snapshot: FollowedSnapshot, key_id: str) -> bool:
    record = snapshot.get(Kind.KEY, key_id)
    return record is not None and not record.is_deleted


def test_states_from_empty_to_following() -> None:
    snapshot = FollowedSnapshot()
    assert (snapshot.state, snapshot.age_s(5.0)) == (SnapshotState.EMPTY, float("inf"))
    assert snapshot.observe(None, 1.0) is Look.NOTHING
    assert snapshot.state is SnapshotState.EMPTY  # an unmarked store teaches nothing
    assert snapshot.observe(marker(10), 2.0) is Look.EVERYTHING
    snapshot.begin_load(marker(10))
    assert snapshot.state is SnapshotState.LOADING
    snapshot.merge(key_record("a", 7))
    assert snapshot.end_load(3.0)
    assert (snapshot.state, snapshot.is_complete, snapshot.age_s(4.5)) == (SnapshotState.FOLLOWING, True, 1.5)
    assert serves(snapshot, "a")


def test_a_silent_store_makes_it_stale_and_nothing_else() -> None:
    snapshot = loaded(key_record("a", 7))
    snapshot.lose()
    assert (snapshot.state, snapshot.age_s(60.0)) == (SnapshotState.STALE, 60.0)
    assert serves(snapshot, "a")
    assert snapshot.observe(marker(10, 1), 61.0) is Look.NOTHING
    assert (snapshot.state, snapshot.age_s(61.0)) == (SnapshotState.FOLLOWING, 0.0)


@pytest.mark.parametrize("found", [None, marker(99, store_id="store-b")])
def test_another_store_or_none_is_an_outage(found: Marker | None) -> None:
    snapshot = loaded(key_record("a", 7))
    assert snapshot.observe(found, 1.0) is Look.NOTHING
    assert (snapshot.state, serves(snapshot, "a")) == (SnapshotState.FOREIGN, True)
    snapshot.lose()
    assert snapshot.state is SnapshotState.FOREIGN  # until the followed store itself answers
    assert snapshot.observe(marker(10, 1), 2.0) is Look.EVERYTHING
    assert load(snapshot, marker(10, 1), [key_record("a", 7)])
    assert snapshot.state is SnapshotState.FOLLOWING


def test_changes_are_taken_in_order() -> None:
    snapshot = loaded(key_record("a", 7))
    assert snapshot.observe(marker(12, 2), 1.0) is Look.CHANGES
    changes = [Change(11, 10, key_record("b", 11)), Change(12, 11, key_record("a", 12, is_deleted=True))]
    assert snapshot.read(changes, marker(12, 2), 1.0)
    assert (serves(snapshot, "a"), serves(snapshot, "b"), snapshot.position) == (False, True, 12)


@pytest.mark.parametrize("kept", [[], [Change(13, 12, key_record("b", 13))]])
def test_a_trimmed_change_means_that_everything_is_read(kept: list[Change]) -> None:
    snapshot = loaded(key_record("a", 7))
    assert snapshot.observe(marker(13), 1.0) is Look.CHANGES
    assert not snapshot.read(kept, marker(13), 1.0)
    assert snapshot.state is SnapshotState.STALE
    assert snapshot.observe(marker(13), 1.0) is Look.EVERYTHING
    assert serves(snapshot, "a")


def test_what_a_store_has_lost_stays_and_is_counted() -> None:
    snapshot = loaded(key_record("a", 7), key_record("b", 8))
    assert snapshot.observe(marker(9), 1.0) is Look.EVERYTHING  # it came back with older content
    assert load(snapshot, marker(9, 1), [key_record("a", 7)])
    assert (serves(snapshot, "a"), serves(snapshot, "b"), snapshot.num_missing) == (True, True, 1)


def test_a_change_that_a_store_has_lost_stays_and_is_counted() -> None:
    """The defect: a failover that lost a revocation was in no metric, since both have the key."""
    snapshot = loaded(key_record("a", 7), key_record("b", 8))
    assert snapshot.read([Change(12, 10, key_record("a", 12, is_deleted=True))], marker(12, 2), 1.0)
    assert snapshot.observe(marker(10, 2), 2.0) is Look.EVERYTHING
    assert load(snapshot, marker(10, 2), [key_record("a", 7), key_record("a", 7), key_record("b", 8)])
    assert (serves(snapshot, "a"), snapshot.num_missing) == (False, 1)
    assert load(snapshot, marker(14, 2), [key_record("a", 14, is_deleted=True), key_record("b", 8)])
    assert snapshot.num_missing == 0
    assert load(snapshot, marker(16, 2), [key_record("a", 16), key_record("b", 8)])
    assert (serves(snapshot, "a"), snapshot.num_missing) == (False, 1)


def test_a_revocation_counts_also_where_the_store_has_lost_the_change_before_it() -> None:
    """A failover lost a change of the key, and the clock of the new master is behind that of the old one."""
    snapshot = loaded(key_record("a", 7))
    assert snapshot.read([Change(12, 10, key_record("a", 12))], marker(12, 1), 1.0)
    assert load(snapshot, marker(10, 1), [key_record("a", 7)])
    assert snapshot.read([Change(11, 10, key_record("a", 11, is_deleted=True))], marker(11, 1), 2.0)
    assert not serves(snapshot, "a")
    snapshot.merge(key_record("a", 12))
    assert not serves(snapshot, "a")


def test_fewer_records_than_the_store_says_is_an_outage() -> None:
    fresh = FollowedSnapshot()
    fresh.observe(marker(10, 2), 0.0)
    assert not load(fresh, marker(10, 2), [key_record("a", 7)])
    assert (fresh.is_complete, fresh.state) == (False, SnapshotState.EMPTY)
    snapshot = loaded(key_record("a", 7), key_record("b", 8))
    snapshot.observe(marker(20, 2), 0.0)
    assert not load(snapshot, marker(20, 2), [key_record("a", 7)])
    assert (snapshot.state, serves(snapshot, "b")) == (SnapshotState.FOREIGN, True)


def test_a_malformed_record_leaves_the_last_good_one_and_all_others() -> None:
    snapshot = loaded(key_record("a", 7), key_record("b", 8))
    snapshot.read([Change(11, 10, Malformed(Kind.KEY, "a", "no JSON"))], marker(11), 1.0)
    assert snapshot.malformed == {(Kind.KEY, "a"): "no JSON"}
    assert serves(snapshot, "a")
    assert serves(snapshot, "b")
    snapshot.read([Change(12, 11, key_record("a", 12, is_deleted=True))], marker(12), 1.0)
    assert snapshot.malformed == {}
    assert not serves(snapshot, "a")


def test_a_revoked_key_stays_revoked_and_an_adapters_name_may_come_back() -> None:
    snapshot = loaded(key_record("a", 7, is_deleted=True))
    snapshot.merge(key_record("a", 99))
    assert not serves(snapshot, "a")
    adapter = {
        "base_model_digest": "b", "uri": "u", "digest": "d", "rank": 1, "alpha": 1.0, "target_modules": ["q"],
        "num_bytes": 1, "created_unix_s": 1,
    }  # fmt: skip
    snapshot.merge(parse_record(Kind.ADAPTER, "acme/x", f"3 {make_body({}, is_deleted=True)}"))
    snapshot.merge(parse_record(Kind.ADAPTER, "acme/x", f"4 {make_body(adapter)}"))
    assert not snapshot.of_owner(Kind.ADAPTER, "acme")["x"].is_deleted


def test_the_newer_of_two_versions_stays_in_whatever_order_they_come() -> None:
    older, newer = tenant_record("acme", 3, plan="batch"), tenant_record("acme", 4, plan="premium")
    for order in ((older, newer), (newer, older)):
        snapshot = loaded()
        for record in order:
            snapshot.merge(record)
        assert snapshot.get(Kind.TENANT, "acme") is newer


def test_a_restored_copy_serves_before_any_store_answers() -> None:
    snapshot = FollowedSnapshot()
    snapshot.restore(STORE, 10, [key_record("a", 7)], confirmed_s=-30.0)
    assert (snapshot.state, snapshot.age_s(0.0), serves(snapshot, "a")) == (SnapshotState.STALE, 30.0, True)
    assert snapshot.observe(marker(99, store_id="store-b"), 0.0) is Look.NOTHING
    assert snapshot.state is SnapshotState.FOREIGN
    assert snapshot.observe(marker(10), 0.0) is Look.EVERYTHING


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create", "revoke", "spoil"]), st.integers(0, 4)),
        st.tuples(
            st.sampled_from(["trim", "flush", "bring back", "rewind", "other store", "outage", "look"]), st.just(0)
        ),
    ),
    max_size=60,
)


class ModelStore:
    """A store that can lose what it has, in every way that Redis can."""

    def __init__(self) -> None:
        self.time, self.store_id, self.revision = 100, STORE, 0
        self.records: dict[str, Record | Malformed] = {}
        self.changes: list[Change] = []
        self.backup: tuple[int, dict[str, Record | Malformed], list[Change]] = (0, {}, [])
        self.is_marked, self.is_up = True, True

    def write(self, key_id: str, *, is_deleted: bool = False, is_spoilt: bool = False) -> None:
        self.time += 1
        content: Record | Malformed = key_record(key_id, self.time, is_deleted=is_deleted)
        if is_spoilt:
            content = Malformed(Kind.KEY, key_id, "spoilt")
        self.changes.append(Change(self.time, self.revision, content))
        self.revision, self.records[key_id] = self.time, content

    def do(self, step: str, number: int) -> None:
        key_id = f"key-{number}"
        known = self.records.get(key_id)
        can_write = self.is_marked and self.is_up and self.store_id == STORE
        if step == "create" and can_write and known is None:
            self.write(key_id)
        elif step == "revoke" and can_write and known is not None:
            self.write(key_id, is_deleted=True)
        elif step == "spoil" and can_write and isinstance(known, Record) and not known.is_deleted:
            self.write(key_id, is_spoilt=True)
        elif step == "trim":
            self.changes = self.changes[-1:]
        elif step == "flush":
            self.backup = (self.revision, dict(self.records), list(self.changes))
            self.records, self.changes, self.is_marked = {}, [], False
        elif step == "rewind":
            self.revision, self.records, self.changes = self.backup[0], dict(self.backup[1]), list(self.backup[2])
        elif step == "bring back":  # by adopting: the marker is written again, some records are not there
            self.time += 1
            self.is_marked, self.is_up, self.store_id, self.revision, self.changes = True, True, STORE, self.time, []
        elif step == "other store":
            self.store_id = "store-b"
        elif step == "outage":
            self.is_up = not self.is_up

    @property
    def marker(self) -> Marker | None:
        return marker(self.revision, len(self.records), self.store_id) if self.is_marked else None


def look_at(store: ModelStore, snapshot: FollowedSnapshot) -> None:
    if not store.is_up:
        snapshot.lose()
        return
    found = store.marker
    look = snapshot.observe(found, 0.0)
    if found is not None and look is Look.CHANGES:
        assert snapshot.position is not None
        changes = [change for change in store.changes if change.revision > snapshot.position]
        look = Look.NOTHING if snapshot.read(changes, found, 0.0) else Look.EVERYTHING
    if found is not None and look is Look.EVERYTHING:
        load(snapshot, found, list(store.records.values()))


@given(STEPS)
def test_no_key_is_dropped_without_a_tombstone_and_none_serves_after_it(steps: list[tuple[str, int]]) -> None:
    store, snapshot = ModelStore(), FollowedSnapshot()
    ever_served: set[str] = set()
    buried: set[str] = set()
    for step, number in steps:
        store.do(step, number)
        look_at(store, snapshot)
        known = {record.id: record for record in snapshot.records()}
        buried |= {key_id for key_id, record in known.items() if record.is_deleted}
        ever_served |= {key_id for key_id in known if serves(snapshot, key_id)}
        assert not [key_id for key_id in buried if serves(snapshot, key_id)]
        assert [key_id for key_id in ever_served - buried if not serves(snapshot, key_id)] == []
        if snapshot.state is SnapshotState.FOLLOWING:
            stored = {k: r for k, r in store.records.items() if isinstance(r, Record)}
            for key_id, record in stored.items():
                if not known[key_id].is_deleted:  # a tombstone that was seen outlives a store that went back in time
                    assert known[key_id].version >= record.version
                    assert not record.is_deleted
