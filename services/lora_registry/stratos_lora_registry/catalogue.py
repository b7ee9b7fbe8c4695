"""Which adapter each name means: records in Redis, and the manifest that outlives it.

A name has one record.  Registering the same content again changes nothing but its place; other content becomes what the
name means, and the record keeps what it meant before, so that a name can go back.  Of two registrations of one name the
one that began later wins, whichever ends first: each carries the time at which it began, and a write names the version
that it has seen.  A deleted name stays as a tombstone.

A write goes to Redis first and counts from then on; the manifest follows, at once where the object store answers, else
with the next check.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from redis.exceptions import RedisError

from stratos.common.errors import BadRequest, DependencyDown, ModelNotFound, NotFound, StratosError
from stratos.core.adapter import Adapter, AdapterVersion
from stratos.store.records.audit import AuditEntry, shown_value
from stratos.store.records.manifest import IN_MANIFEST, ManifestStore
from stratos.store.records.record import Kind, Record, make_body, version_of
from stratos.store.records.record_store import RecordStore, VersionConflict, read_record
from stratos.store.records.values import adapter_id, encode_adapter, owner_and_name
from stratos.store.tenants import TenantRecord, TenantRef

_log = logging.getLogger(__name__)
_MANIFEST_WAIT_S = 1.0
"""Longest wait of a write for the object store: it counts already, and the next check makes up for it."""
_CHECK_S = 30.0
MAX_FORMER = 8
"""Versions of a name that it can go back to."""


_KEPT_FIELDS = ("created_unix_s", "former", "is_rolled_back")
"""Of a record, where the same content is registered again."""


@dataclass(frozen=True, slots=True)
class BegunRegistration:
    """One that runs."""

    began: int
    """Microseconds, by which the later one of two is known."""
    owner: TenantRef


class AdapterCatalogue:
    """Reads and writes the records; every method raises ``DependencyDown`` when Redis, or its marker, is gone.

    Args:
        records: in Redis.
        manifests: in the object store.
    """

    def __init__(self, records: RecordStore, manifests: ManifestStore) -> None:
        self._records = records
        self._manifests = manifests
        self._store_id = ""
        self._checked_revision = -1

    async def check(self) -> int:
        """Ask for a sign of life, and whether this is the store that this registry works with.

        Returns:
            Its time in microseconds, which is behind no change of it: after a failover the clock may be.

        Raises:
            DependencyDown: Redis does not answer, has no marker, or holds another store.
            BadRequest: it cannot hold records.
        """
        await self._records.check_server()
        marker = await self._records.require_marker(self._store_id)
        return max(await self._records.now_us(), marker.revision)

    async def begin(self, tenant: str) -> BegunRegistration:
        """Begin a registration for a tenant; "" is all of them.

        Raises:
            NotFound: the tenant is being deleted.
            DependencyDown: Redis or the object store does not answer, or they belong to different stores.
        """
        if not self._store_id:
            found = (await self._records.require_marker()).store_id
            manifest = await self._manifests.read()
            self._store_id = manifest.store_id if manifest is not None else found
        return BegunRegistration(await self.check(), await self._owner(tenant))

    async def check_name(self, name: str) -> None:
        """Refuse the name of a base model or an alias that a record has; it would hide the adapter.

        Raises:
            BadRequest: it is one.
            DependencyDown: Redis does not answer.
        """
        models = await self._records.records(Kind.MODEL)
        if any(not record.is_deleted and owner_and_name(record.id)[0] == name for record in models):
            raise BadRequest(f"the name {name!r} is a base model's; choose another one", param="name")
        aliases = await self._records.records(Kind.ALIAS)
        if any(not record.is_deleted and record.id == name for record in aliases):
            raise BadRequest(f"the name {name!r} is an alias of models; choose another one", param="name")

    async def put(self, adapter: Adapter, registration: BegunRegistration) -> Adapter:
        """Point a name to an adapter; returns it as stored.

        Raises:
            NotFound: its tenant was deleted since.
            BadRequest: the name was registered or deleted by work that began later.
        """
        record_id = adapter_id(adapter.tenant, adapter.name)
        while True:
            text, old = await self._look_up(record_id)
            if old is not None and old.began > registration.began:
                message = f"{adapter.name!r} was registered or deleted again while this registration ran"
                raise BadRequest(f"{message}; the later one counts", param="name", code="superseded")
            kept = _with_past(adapter, old)
            try:
                body = make_body(encode_adapter(kept), began=registration.began)
                action = "adapter.rollback" if adapter.is_rolled_back else "adapter.register"
                await self._write(record_id, body, text, action, registration.owner)
            except VersionConflict:
                continue
            return kept

    async def list(self, tenant: str) -> list[Adapter]:
        """Adapters a tenant may use, sorted by name; its own hide those of every tenant with the same name."""
        await self.check()
        found: dict[str, Adapter] = {}
        for record in sorted(await self._records.records(Kind.ADAPTER), key=lambda record: record.id):
            owner, name = owner_and_name(record.id)
            if owner in ("", tenant) and isinstance(record.value, Adapter):
                found[name] = record.value  # common ones come first, their ids begin with a slash
        return sorted(found.values(), key=lambda adapter: adapter.name)

    async def delete(self, tenant: str, name: str) -> None:
        """Take a name away from its owner.

        Raises:
            ModelNotFound: the tenant owns no adapter of that name.
        """
        record_id, began, owner = adapter_id(tenant, name), await self.check(), await self._owner(tenant)
        while True:
            text, old = await self._look_up(record_id)
            if text is None or (old is not None and old.is_deleted):
                raise ModelNotFound(f"there is no adapter named {name!r}", param="model")
            value = encode_adapter(old.value) if old is not None and isinstance(old.value, Adapter) else {}
            try:
                body = make_body(value, is_deleted=True, began=began)
                await self._write(record_id, body, text, "adapter.delete", owner)
            except VersionConflict:
                continue
            return

    async def keep_manifest_forever(self) -> None:
        """Root task: bring into the manifest what a write could not, or what another registry overwrote."""
        problem = ""
        while True:
            try:
                await self.check_manifest()
                problem = ""
            except (StratosError, RedisError) as error:  # such as rights of its user that were taken away
                if not problem:
                    _log.warning("the manifest of adapters is not checked: %s", error)
                problem = str(error)
            await asyncio.sleep(_CHECK_S)

    async def check_manifest(self) -> None:
        """Compare the manifest with Redis, if anything has changed since it was found to have all of it."""
        marker = await self._records.require_marker(self._store_id)
        if marker.revision == self._checked_revision:
            return
        manifest = await self._manifests.add(marker.store_id, await self._records.records(*IN_MANIFEST))
        if not manifest.has_grown:
            self._checked_revision = marker.revision

    async def _look_up(self, record_id: str) -> tuple[str | None, Record | None]:
        text = await self._records.text_of(Kind.ADAPTER, record_id)
        content = read_record(Kind.ADAPTER, record_id, text or "")
        return text, content if isinstance(content, Record) else None

    async def _owner(self, tenant: str) -> TenantRef:
        """The tenant, which need not be there yet; raises ``NotFound`` for one that is being deleted."""
        text = await self._records.text_of(Kind.TENANT, tenant) if tenant else None
        content = read_record(Kind.TENANT, tenant, text or "")
        found = content.value if isinstance(content, Record) else None
        if isinstance(found, TenantRecord) and found.is_closing:
            raise NotFound(f"tenant {tenant!r} is being deleted")
        return found.ref if isinstance(found, TenantRecord) else TenantRef(tenant, "")

    async def _write(self, record_id: str, body: str, old: str | None, action: str, owner: TenantRef) -> None:
        entry = AuditEntry(
            actor="lora-registry", action=action, kind=Kind.ADAPTER.value, id=record_id,
            tenant=owner.name, tenant_id=owner.id, before=shown_value(old), after=shown_value(body),
        )  # fmt: skip
        version = await self._records.write(
            Kind.ADAPTER, record_id, body, seen=version_of(old), store_id=self._store_id, audit=entry,
            tenant=owner, condition=owner.while_live,
        )  # fmt: skip
        record = read_record(Kind.ADAPTER, record_id, f"{version} {body}")
        assert isinstance(record, Record), "what was written can be read"
        store_id = self._store_id or (await self._records.require_marker()).store_id
        try:
            async with asyncio.timeout(_MANIFEST_WAIT_S):
                await self._manifests.add(store_id, [record])
        except (DependencyDown, TimeoutError) as error:
            _log.warning("the manifest does not have %r yet, it is tried again: %s", record_id, error)


def _with_past(adapter: Adapter, old: Record | None) -> Adapter:
    """The adapter with what its name meant before, or the time of its first registration where that is the same."""
    known = old.value if old is not None else None
    if not isinstance(known, Adapter):
        return adapter
    if _content(known.version) == _content(adapter.version):
        return replace(adapter, **{name: getattr(known, name) for name in _KEPT_FIELDS})
    past = (known.version, *known.former)
    return replace(adapter, former=tuple(v for v in past if _content(v) != _content(adapter.version))[:MAX_FORMER])


def _content(version: AdapterVersion) -> tuple[str, str]:
    return version.base_model_digest, version.digest
