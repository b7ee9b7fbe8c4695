"""Copies of other gateways: the latest one by the store's count, as old as the machine that made it says."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from stratos.common.clock import FakeClock
from stratos.rpc.clients.peer_addresses import PeerAddresses
from stratos.store.records.followed_snapshot import FollowedSnapshot
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record_store import RecordStore
from stratos.store.records.settings import SnapshotConfig
from stratos.store.records.snapshot_copy import SnapshotCopy, dump_copy
from stratos_gateway.access.peer_copies import PeerCopies

HOUR_S = 3600.0
ADDRESSES = ("127.0.0.1:1", "127.0.0.1:2")


@pytest.fixture
def follower() -> SnapshotFollower:
    """One that has not looked at its store."""
    return SnapshotFollower(FollowedSnapshot(), RecordStore(Redis()), FakeClock(), SnapshotConfig())


def copy(revision: int, age_s: float, clock_ahead_s: float) -> SnapshotCopy:
    made_s = time.time() + clock_ahead_s
    return SnapshotCopy(
        store_id="a", revision=revision, confirmed_unix_s=made_s - age_s, made_unix_s=made_s, records=[]
    )


async def take(follower: SnapshotFollower, *copies: SnapshotCopy) -> None:
    texts = {address: dump_copy(one) for address, one in zip(ADDRESSES, copies, strict=False)}

    async def fetch(address: str) -> bytes:
        return texts[address]

    await PeerCopies(follower, PeerAddresses(tuple(texts), FakeClock()), fetch).ask_all()


@pytest.mark.parametrize("ahead_s", [-HOUR_S, 0.0, HOUR_S])
async def test_a_copy_is_as_old_as_its_gateway_says_whatever_the_time_is_there(
    follower: SnapshotFollower, ahead_s: float
) -> None:
    await take(follower, copy(7, 30.0, ahead_s))
    assert follower.age_s == pytest.approx(30.0)


async def test_a_clock_that_is_ahead_makes_no_copy_a_newer_one(follower: SnapshotFollower) -> None:
    await take(follower, copy(7, 5.0, HOUR_S), copy(9, 60.0, 0.0))
    assert follower.snapshot.position == 9


async def test_a_copy_of_an_older_version_is_dated_by_our_own_clock(follower: SnapshotFollower) -> None:
    await take(follower, replace(copy(7, 30.0, 0.0), made_unix_s=None))
    assert follower.age_s == pytest.approx(30.0, abs=5.0)
