"""The records in Redis.

    <prefix>:store                   hash {id, revision, num_plan, num_tenant, ...}: the marker
    <prefix>:policy, :template, :plan, :data_key, :tenant, :key, :model, :alias, :rollout, :adapter, :block
                                     hashes, record id -> text of the record; nothing is ever taken out of them
    <prefix>:changes                 stream of the last changes {after, kind, id, text}; its ids are revisions
    <prefix>:audit                   stream of every change by a person {entry}; nothing is ever taken out of it
    <prefix>:audit:<tenant id>       stream that has the ids of those entries which are about one tenant

The marker is written by ``mark`` alone.  Without it, with another id than the caller expects, or where records are
gone although nothing takes any out, a write is refused: Redis was emptied, or is another one.  Scripts use keys of
several slots, so Redis Cluster is refused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.connections.address import cluster_refused
from stratos.store.records import scripts
from stratos.store.records.audit import AuditEntry, AuditPage, parse_entry
from stratos.store.records.followed_snapshot import Change, Malformed, Marker
from stratos.store.records.record import Kind, MalformedRecord, Record, parse_record
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.tenants import Condition, TenantRef, unknown_tenant

_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")
_PAGE = 512
_AUDIT_SLICE = 16
_MAX_AUDIT_PAGE = 1000
_AUDIT_PAGE_CHARS = 1 << 20
_MOST_AHEAD_US = 3600 * 1_000_000
"""By which the clock of a server may be behind that of the one before it."""
_SCAN_PAGE = 128
"""Smaller: between two pages the streams of a gateway go on."""
_ADVICE = "serving goes on from what is known; `stratos admin adopt-store` brings the records back"
_REFUSALS = {
    "unmarked": f"this Redis has no store marker, so it was emptied or never set up: {_ADVICE}",
    "foreign": f"this Redis holds another store than the one that is followed: {_ADVICE}",
    "damaged": f"this Redis has lost records: {_ADVICE}",
}


NO_TENANT = TenantRef("", "")


class VersionConflict(Exception):
    """The record has another version than the writer has seen."""


class RecordStore:
    """Reads and writes records; every method raises ``DependencyDown`` when Redis does not answer.

    Args:
        redis: with decoded answers, see ``open_redis``.
        config: where the records lie.

    Raises:
        BadRequest: the prefix cannot be used.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig | None = None) -> None:
        config = config or RecordStoreConfig()
        if not _PREFIX.match(config.prefix):
            raise BadRequest("the prefix in Redis has 1 to 64 characters of a-z A-Z 0-9 . _ : -", param="prefix")
        self._redis: Any = redis  # its types say bytes, text or nothing of every answer
        self._max_changes = config.max_changes
        self._store = f"{config.prefix}:store"
        self._changes = f"{config.prefix}:changes"
        self._audit = f"{config.prefix}:audit"
        self._hashes = {kind: f"{config.prefix}:{kind.value}" for kind in Kind}
        self._write = redis.register_script(scripts.WRITE)
        self._mark = redis.register_script(scripts.MARK)
        self._count_on = redis.register_script(scripts.COUNT_ON)
        self._restore = redis.register_script(scripts.RESTORE)
        self._scrub = redis.register_script(scripts.SCRUB)

    async def check_server(self) -> None:
        """Ask Redis for a sign of life, and refuse a server that cannot hold records.

        Raises:
            BadRequest: it is a Redis Cluster.
        """
        with translate_redis_errors():
            info: Mapping[str, Any] = await self._redis.info("cluster")
        if info.get("cluster_enabled"):
            raise cluster_refused()

    async def marker(self) -> Marker | None:
        """Read the store's marker; ``None`` where it was never set up, or has lost all it had."""
        names = ["id", "revision", *(f"num_{kind.value}" for kind in Kind)]
        with translate_redis_errors():
            store_id, revision, *counts = await self._redis.hmget(self._store, names)
        if not store_id:
            return None
        try:
            return Marker(
                store_id=store_id, revision=int(revision), num_records=sum(int(count or 0) for count in counts)
            )
        except (TypeError, ValueError):
            raise DependencyDown(f"the store marker in Redis is malformed: {_ADVICE}") from None

    async def require_marker(self, store_id: str = "") -> Marker:
        """The marker.

        Raises:
            DependencyDown: there is none, or it names another store than ``store_id``, where that is not "".
        """
        marker = await self.marker()
        if marker is None or store_id not in ("", marker.store_id):
            raise DependencyDown(_REFUSALS["unmarked" if marker is None else "foreign"])
        return marker

    async def count_on(self, marker: Marker, seen: int) -> Marker:
        """Let the store's next changes be newer than those that it has lost; returns its marker.

        Args:
            marker: of the store.
            seen: revision that it had, by a follower.
        """
        with translate_redis_errors():
            revision = await self._count_on(keys=[self._store], args=[marker.store_id, seen, _MOST_AHEAD_US])
        return replace(marker, revision=int(revision or marker.revision))

    async def now_us(self) -> int:
        """Time of the server in microseconds, as versions are."""
        with translate_redis_errors():
            seconds, microseconds = await self._redis.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    async def changes(self, after: int) -> list[Change]:
        """Changes after a revision, oldest first, as far as the stream still has them."""
        found: list[Change] = []
        while True:
            with translate_redis_errors():
                page = await self._redis.xrange(self._changes, min=f"({after}-0", count=_PAGE)
            for entry_id, fields in page:
                after = int(entry_id.partition("-")[0])
                found.append(Change(after, int(fields.get("after", -1)), _content_of_change(fields)))
            if len(page) < _PAGE:
                return found

    async def everything(self, *kinds: Kind) -> AsyncIterator[list[tuple[Kind, str, str]]]:
        """All records, or those of some kinds, as (kind, id, text), page by page; one may come twice."""
        for kind in kinds or Kind:
            name, cursor = self._hashes[kind], 0
            while True:
                with translate_redis_errors():
                    cursor, page = await self._redis.hscan(name, cursor, count=_SCAN_PAGE)
                yield [(kind, record_id, text) for record_id, text in page.items()]
                if cursor == 0:
                    break

    async def records(self, *kinds: Kind) -> list[Record]:
        """Records of some kinds, tombstones included, malformed ones left out.

        Raises:
            DependencyDown: the store has no marker.
        """
        await self.require_marker()
        found: dict[tuple[Kind, str], Record] = {}
        async for page in self.everything(*kinds):
            for kind, record_id, text in page:
                if isinstance(content := read_record(kind, record_id, text), Record):
                    found[kind, record_id] = content
        return list(found.values())

    async def text_of(self, kind: Kind, record_id: str) -> str | None:
        """The stored text of one record."""
        with translate_redis_errors():
            text: str | None = await self._redis.hget(self._hashes[kind], record_id)
        return text

    async def write(
        self,
        kind: Kind,
        record_id: str,
        body: str,
        *,
        seen: int,
        store_id: str = "",
        audit: AuditEntry | None = None,
        tenant: TenantRef = NO_TENANT,
        condition: Condition = Condition.NONE,
    ) -> int:
        """Store a new version of a record; returns the version.

        Args:
            kind: of the record.
            record_id: which one.
            body: see ``make_body``.
            seen: the version that the writer has looked at; 0 where there was none.
            store_id: the store that is meant; "" takes any that is marked.
            audit: appended to the audit log with the write; ``None`` for what no person asked for.
            tenant: whose record it is.
            condition: on that tenant, looked at in one step with the write.

        Raises:
            VersionConflict: another writer was first.
            NotFound: the tenant is not as the condition says.
            DependencyDown: the store is not marked, not the one that is meant, or has lost records.
        """
        with translate_redis_errors():
            outcome, detail = await self._write(
                keys=[
                    self._store,
                    self._hashes[kind],
                    self._changes,
                    self._audit,
                    self._hashes[Kind.TENANT],
                    f"{self._audit}:{tenant.id}",
                ],
                args=[
                    store_id,
                    kind.value,
                    record_id,
                    str(seen),
                    body,
                    self._max_changes,
                    "" if audit is None else audit.as_text(),
                    tenant.name,
                    tenant.id,
                    condition.value,
                ],
            )
        if outcome == "gone":
            raise unknown_tenant(tenant.name)
        if outcome == "conflict":
            raise VersionConflict(detail)
        if outcome != "ok":
            raise DependencyDown(_REFUSALS[outcome])
        return int(detail)

    async def scrub(self, kind: Kind, record_id: str = "") -> None:
        """Take older versions of a record, or of all of a kind, out of the changes; its newest one stays there."""
        with translate_redis_errors():
            await self._scrub(keys=[self._changes, self._hashes[kind]], args=[kind.value, record_id])

    async def audit_page(self, after: str = "0", *, tenant: str = "") -> AuditPage:
        """Entries of the audit log, oldest first; ones that cannot be read are left out.

        Args:
            after: id of the last entry that is known.
            tenant: id of the tenant that they are about; "" takes all of them.
        """
        found: list[AuditEntry] = []
        num_chars = 0
        while num_chars < _AUDIT_PAGE_CHARS and len(found) < _MAX_AUDIT_PAGE:
            with translate_redis_errors():
                entries = await self._audit_slice(after, tenant)
            for after, text in entries:
                num_chars += len(text)
                if (entry := parse_entry(after, text)) is not None:
                    found.append(entry)
            if len(entries) < _AUDIT_SLICE:
                return AuditPage(found, after if found else None)
        return AuditPage(found, after)

    async def _audit_slice(self, after: str, tenant: str) -> list[tuple[str, str]]:
        """Ids and texts of the next entries; few at a time, since one may be as large as a template."""
        if not tenant:
            page = await self._redis.xrange(self._audit, min=f"({after}", count=_AUDIT_SLICE)
            return [(entry_id, fields.get("entry", "")) for entry_id, fields in page]
        names = [
            name for name, _ in await self._redis.xrange(f"{self._audit}:{tenant}", f"({after}", "+", _AUDIT_SLICE)
        ]
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.xrange(self._audit, name, name)
            pages = await pipeline.execute()
        return [(name, page[0][1].get("entry", "") if page else "") for name, page in zip(names, pages, strict=True)]

    async def restore(self, records: Iterable[Record]) -> int:
        """Put records back with the versions they had, where no newer one is there; returns how many were put.

        No marker is needed, and followers are not told: ``mark`` comes after it.
        """
        by_kind: dict[Kind, list[str]] = {}
        for record in records:
            by_kind.setdefault(record.kind, []).extend((record.id, record.text))
        num = 0
        for kind, fields in by_kind.items():
            for begin in range(0, len(fields), _PAGE):
                with translate_redis_errors():
                    num += await self._restore(keys=[self._hashes[kind]], args=fields[begin : begin + _PAGE])
        return num

    async def clear(self) -> None:
        """Take the records of a store out that another one takes the place of; until ``mark`` it takes no writes."""
        with translate_redis_errors():
            await self._redis.unlink(self._changes, *self._hashes.values())

    async def mark(self, store_id: str, *, replaces: str = "", least_revision: int = 0) -> None:
        """Write the marker: from now on this is the store ``store_id``, and followers of it read everything.

        Args:
            store_id: of the store.
            replaces: id of another store that the marker may name until now.
            least_revision: at least the highest version of a record that was restored.

        Raises:
            DependencyDown: the marker names yet another store.
        """
        with translate_redis_errors():
            outcome, _ = await self._mark(
                keys=[self._store, self._changes, *self._hashes.values()],
                args=[store_id, replaces, least_revision, *(kind.value for kind in self._hashes)],
            )
        if outcome != "ok":
            raise DependencyDown(_REFUSALS[outcome])


def read_record(kind: Kind, record_id: str, text: str) -> Record | Malformed:
    """A stored text as a record, or what is wrong with it."""
    try:
        return parse_record(kind, record_id, text)
    except MalformedRecord as error:
        return Malformed(kind, record_id, str(error))


def _content_of_change(fields: Mapping[str, str]) -> Record | Malformed:
    try:
        kind = Kind(fields["kind"])
    except (KeyError, ValueError):
        return Malformed(Kind.TENANT, "", "a change of an unknown kind")
    return read_record(kind, fields.get("id", ""), fields.get("text", ""))
