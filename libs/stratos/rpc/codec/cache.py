"""Changes of prefix caches and the layout of block names <-> messages, both ways."""

from __future__ import annotations

from stratos.api.router.v1 import router_pb2
from stratos.api.worker.v1 import cache_pb2
from stratos.common.errors import BadRequest
from stratos.core.cache_changes import CacheChanges, CacheLayout
from stratos.rpc.codec.fleet import identity_from_pb, identity_to_pb


def changes_to_pb(incarnation: str, changes: CacheChanges) -> cache_pb2.WatchCacheResponse:
    """Changes of a process' cache as a message."""
    return cache_pb2.WatchCacheResponse(
        incarnation=incarnation,
        after=changes.after,
        last=changes.last,
        stored=changes.stored,
        removed=changes.removed,
        is_dump=changes.is_dump,
    )


def changes_from_pb(message: cache_pb2.WatchCacheResponse) -> CacheChanges:
    """Changes from a message.

    Raises:
        BadRequest: the process is not named, or the numbers run backwards.
    """
    if not message.incarnation:
        raise BadRequest("changes of a cache must name their process", param="incarnation")
    if message.after > message.last:
        raise BadRequest("changes of a cache must not end before they begin", param="after")
    return CacheChanges(
        after=message.after,
        last=message.last,
        stored=tuple(message.stored),
        removed=tuple(message.removed),
        is_dump=message.is_dump,
    )


def layout_to_pb(layout: CacheLayout) -> router_pb2.CacheLayout:
    """A layout as a message."""
    return router_pb2.CacheLayout(identity=identity_to_pb(layout.identity), block_size=layout.block_size)


def layout_from_pb(message: router_pb2.CacheLayout) -> CacheLayout:
    """A layout from a message.

    Raises:
        BadRequest: the block size is zero.
    """
    if message.block_size < 1:
        raise BadRequest("a cache layout must have a block_size of at least 1", param="block_size")
    return CacheLayout(identity_from_pb(message.identity), message.block_size)
