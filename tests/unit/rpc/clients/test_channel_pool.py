"""Channels to many peers."""

from __future__ import annotations

import grpc

from stratos.rpc.clients.channel_pool import ChannelPool
from stratos.rpc.clients.dialer import ANY_WORKER


async def test_a_process_has_one_channel_and_its_successor_another() -> None:
    pool = ChannelPool(4, ANY_WORKER)
    first = pool.get("127.0.0.1:1", "a")
    assert pool.get("127.0.0.1:1", "a") is first
    assert pool.get("127.0.0.1:1", "b") is not first
    pool.drop("127.0.0.1:1", "a")
    assert pool.get("127.0.0.1:1", "a") is not first
    await pool.close()
    assert not len(pool)


async def test_new_peers_are_met_for_ever_and_the_least_recently_used_channel_is_closed() -> None:
    pool = ChannelPool(3, ANY_WORKER)
    channels = {number: pool.get(f"127.0.0.1:{number}") for number in (1, 2, 3)}
    assert pool.get("127.0.0.1:1") is channels[1]
    for number in (4, 5):
        pool.get(f"127.0.0.1:{number}")
        assert len(pool) == 3
    assert pool.get("127.0.0.1:1") is channels[1]
    await pool.close()
    assert all(peer.get_state() is grpc.ChannelConnectivity.SHUTDOWN for peer in channels.values())
