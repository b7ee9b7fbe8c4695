"""Marks of what is at work in the registry: publications and sweeps, which keep out of each other's way.

    put the own mark ──▶ one of the other kind that lives? ──▶ leave, with an error; else work ──▶ take the mark away

Each side puts its mark before it looks, and a store shows what was put: so of two that begin at once at least one sees
the other.  A mark is written again as long as its process lives.  One that is old by the store's own clock is of a
process that died, and a sweep takes it away; a publication that then finds its mark gone does not stand.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from stratos.common.background import end_tasks
from stratos.common.errors import Busy, NotFound, StratosError
from stratos.store.object_store import ObjectInfo, ObjectStore

FOLDER = "registry/marks"
RENEWED_EVERY_S = 30.0
DEAD_AFTER_S = 900.0


class MarkKind(enum.StrEnum):
    """Work that others have to know of."""

    PUBLISHING = "publishing"
    SWEEPING = "sweeping"


class Mark:
    """The mark of one process.

    Args:
        store: the object store.
        key: where it lies.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key = store, key
        self.written_unix_s = 0.0
        """When it was put, by the store's clock."""

    async def put(self) -> None:
        """Write it, for the first time or again."""
        await self._store.put(self._key, b"{}")

    async def stands(self) -> bool:
        """Whether it is there still."""
        try:
            return bool(await self._store.read(self._key, 0, 1))
        except NotFound:
            return False

    async def look(self) -> list[ObjectInfo]:
        """Marks of others, after this one was put."""
        found = await self._store.list_all(FOLDER)
        own = next((info for info in found if info.key == self._key), None)
        if own is None:
            raise Busy("the mark of this process is gone from the registry; try again", after_s=1.0)
        self.written_unix_s = own.written_unix_s
        return [info for info in found if info.key != self._key]

    def is_dead(self, other: ObjectInfo) -> bool:
        """Another mark has not been written again for long."""
        return self.written_unix_s - other.written_unix_s > DEAD_AFTER_S


@asynccontextmanager
async def marked(store: ObjectStore, kind: MarkKind) -> AsyncIterator[Mark]:
    """Within it the other kind of work does not begin, and a sweep is the only one.

    Raises:
        Busy: the other kind is at work.
        DependencyDown: the store does not answer.
    """
    key = f"{FOLDER}/{kind.value}-{secrets.token_hex(8)}"
    mark = Mark(store, key)
    await mark.put()
    try:
        for other in await mark.look():
            is_publishing = other.key.startswith(f"{FOLDER}/{MarkKind.PUBLISHING.value}-")
            if mark.is_dead(other) or (kind is MarkKind.PUBLISHING and is_publishing):
                continue
            what = "a model is being published" if is_publishing else "the registry is being swept"
            raise Busy(f"{what}; try again when that is done", after_s=30.0)
        renewal = asyncio.create_task(_renew(mark), name="registry mark")
        try:
            yield mark
        finally:
            await end_tasks([renewal])
    finally:
        with suppress(StratosError):  # it is dead to others after a while
            await store.delete(key)


async def _renew(mark: Mark) -> None:
    while True:
        await asyncio.sleep(RENEWED_EVERY_S)
        with suppress(StratosError):
            if await mark.stands():  # one that a sweep took away stays away
                await mark.put()
