"""The ledger of ``stratos admin``: its chain of segments, verified at given addresses."""

from __future__ import annotations

from contextlib import AsyncExitStack

from stratos.cli.stores import StoreTarget
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.chain_check import ChainCheck, ChainReport
from stratos.store.ledger.segment_store import SegmentStore
from stratos.store.ledger.unsealed import UnsealedEntries
from stratos.store.ledger.usage_reader import UsageReader
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import open_redis
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store


async def verify_chain(target: StoreTarget) -> ChainReport:
    """Walk along the chain; raises ``DependencyDown`` where a store does not answer."""
    config = RecordStoreConfig(prefix=target.prefix)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(target.redis_url))
        objects = open_store(ObjectStoreConfig(url=target.object_store_url, s3_endpoint_url=target.s3_endpoint_url))
        stack.push_async_callback(objects.close)
        parts = Chain(redis, config), SegmentStore(objects), UnsealedEntries(redis, config), UsageReader(redis, config)
        return await ChainCheck(*parts).run()
