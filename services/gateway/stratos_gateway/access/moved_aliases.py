"""Aliases whose new targets have workers: what they stood for before is dropped from their records, for all gateways.

So workers that vanish later send no request back to a model of the past, and a revision of the past may be removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.counters.guard import StoreId, known
from stratos.store.models.alias_forms import alias_to_json
from stratos.store.models.alias_record import AliasRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos_gateway.models.aliases import AliasChoice, SnapshotAliases

_log = logging.getLogger(__name__)


class MovedAliases:
    """Looks at aliases that move; every gateway does, and the first one writes.

    Args:
        records: where they are stored.
        aliases: those of this gateway.
        choice: says which ones have workers.
        store_id: of the store that takes them.
        poll_s: between looks.
        lacking: living gateways that serve one of some revisions, but not each of others: see ``ServingStore``.
    """

    def __init__(
        self,
        records: RecordStore,
        aliases: SnapshotAliases,
        choice: AliasChoice,
        store_id: StoreId,
        poll_s: float,
        lacking: Callable[[Collection[str], Collection[str]], Awaitable[Sequence[str]]],
    ) -> None:
        self._records, self._aliases, self._choice = records, aliases, choice
        self._store_id, self._poll_s, self._lacking = store_id, poll_s, lacking

    async def run(self) -> None:
        """Root task."""
        while True:
            try:
                await self.settle()
            except (DependencyDown, RedisError) as error:
                _log.debug("aliases that have moved are noted later: %s", error)
            await asyncio.sleep(self._poll_s)

    async def settle(self) -> None:
        """Note those that have moved by now; raises ``DependencyDown``."""
        for alias in self._aliases.moving():
            if self._choice.has_workers(alias) and not await self._is_missing(alias):
                writer = RecordWriter(self._records, actor="gateway", store_id=known(self._store_id))
                await writer.change(Kind.ALIAS, alias.name, "alias.moved", partial(_moved, alias))

    async def _is_missing(self, alias: AliasRecord) -> bool:
        """Whether a gateway would have nothing for its requests but what the alias stood for before."""
        new, before = ({t.digest for t in targets if t.digest} for targets in (alias.targets, alias.before))
        return bool(new) and bool(await self._lacking(new, before))


def _moved(alias: AliasRecord, old: Record | None) -> dict[str, Any] | None:
    """The edit that drops what an alias stood for before, unless it was changed since."""
    return alias_to_json(replace(alias, before=())) if old is not None and old.value == alias else None
