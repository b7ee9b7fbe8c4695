"""Changes of prefix caches and the layout of block hashes <-> messages."""

from __future__ import annotations

from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import cache_pb2
from stratos.common.errors import BadRequest
from stratos.core.cache_changes import CacheChanges, CacheLayout
from stratos.rpc.codec.fields import nested
from stratos.rpc.codec.flat import FlatCodec
from stratos.rpc.codec.fleet import IDENTITY


def _check_changes(message: cache_pb2.WatchCacheResponse) -> None:
    if not message.incarnation:
        raise BadRequest("changes of a cache must name their process", param="incarnation")
    if message.after > message.last:
        raise BadRequest("changes of a cache must not end before they begin", param="after")


def _check_layout(message: router_pb2.CacheLayout) -> None:
    if message.block_size < 1:
        raise BadRequest("a cache layout must have a block_size of at least 1", param="block_size")


CACHE_CHANGES = FlatCodec(CacheChanges, cache_pb2.WatchCacheResponse, by_hand={"incarnation"}, check=_check_changes)
LAYOUT = FlatCodec(CacheLayout, router_pb2.CacheLayout, fields={"identity": nested(IDENTITY)}, check=_check_layout)
