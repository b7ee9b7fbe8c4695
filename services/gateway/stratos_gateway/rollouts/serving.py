"""Tells the other gateways which revisions this one serves."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from stratos.common.background import happens
from stratos.common.errors import DependencyDown
from stratos.store.counters.serving import ServingStore
from stratos_gateway.models.model_set import ModelSet

_log = logging.getLogger(__name__)


async def tell_serving(store: ServingStore, models: ModelSet, poll_s: float) -> None:
    """Root task: at once when a revision came or went, and once in a while, until cancelled."""
    changed = asyncio.Event()
    models.on_change(changed.set)
    while True:
        changed.clear()
        try:
            await store.say(models.digests())
        except (DependencyDown, RedisError) as error:
            _log.debug("which revisions are served here is told later: %s", error)
        await happens(changed, poll_s)
