"""Keys and tenants in Redis, with a snapshot that outlives an outage.

``authenticate`` answers for keys seen before from the snapshot, without a round trip; the root task
``refresh_forever`` reads them again every few seconds, so a revoked key stops working soon, and a dead Redis
stops no key that was used before.  Unknown keys need Redis.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence

from redis.asyncio import Redis
from redis.typing import EncodableT, FieldT

from stratos.common.errors import BadRequest, DependencyDown, InvalidApiKey, NotFound
from stratos.core.tenant import Tenant
from stratos.store.keys import (
    MARKER,
    KeyRecord,
    check_priority_class,
    check_tenant,
    key_mac,
    mint_key,
    parse_key,
    redis_key,
    redis_tenant,
)
from stratos.store.redis import translate_redis_errors

_log = logging.getLogger(__name__)
_BATCH = 256
_EMPTY = "Redis holds no API keys at all; it was emptied, or no key was made yet"


class KeyStore:
    """Makes, checks and revokes keys.

    Args:
        redis: with decoded answers, see ``open_redis``.
        pepper: key of the HMAC, at least 16 characters.
        refresh_s: seconds between two looks at the keys in the snapshot.
        max_known: bound of the snapshot; the oldest entry makes room.
    """

    def __init__(self, redis: Redis, pepper: str, *, refresh_s: float = 2.0, max_known: int = 100_000) -> None:
        if len(pepper) < 16:
            raise BadRequest("the pepper of the API keys must have at least 16 characters", param="pepper")
        self._redis = redis
        self._pepper = pepper
        self._refresh_s = refresh_s
        self._max_known = max_known
        self._known: dict[str, KeyRecord] = {}

    async def create_key(self, tenant: str, name: str, *, priority_class: int = 0, key: str | None = None) -> str:
        """Store a key, and its tenant if it is new; returns the key's text, which is nowhere else.

        Args:
            tenant: owner.
            name: for people.
            priority_class: of a new tenant.
            key: text made earlier by ``mint_key``; storing it again changes nothing but name and tenant.
        """
        check_tenant(tenant)
        check_priority_class(priority_class)
        key = key or mint_key()
        key_id = parse_key(key)
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hsetnx(redis_tenant(tenant), "cache_salt", secrets.token_hex(32))
                pipe.hsetnx(redis_tenant(tenant), "priority_class", str(priority_class))
                fields: dict[FieldT, EncodableT] = {
                    "mac": key_mac(self._pepper, key),
                    "tenant": tenant,
                    "name": name,
                    "disabled": "0",
                }
                pipe.hset(redis_key(key_id), mapping=fields)
                pipe.set(MARKER, "1")
                await pipe.execute()
        return key

    async def revoke_key(self, key_id: str) -> None:
        """Disable a key; gateways drop it within their refresh interval.

        Raises:
            NotFound: no such key.
        """
        with translate_redis_errors():
            if not await self._redis.exists(redis_key(key_id)):
                raise NotFound(f"there is no API key with id {key_id!r}")
            await self._redis.hset(redis_key(key_id), "disabled", "1")
        self._known.pop(key_id, None)

    async def authenticate(self, text: str) -> Tenant:
        """The tenant of a key; raises like ``find``."""
        return (await self.find(text)).tenant

    async def find(self, text: str) -> KeyRecord:
        """The record of a key.

        Raises:
            InvalidApiKey: malformed, unknown, disabled, or another secret.
            DependencyDown: not seen before, and Redis does not answer or is empty.
        """
        key_id = parse_key(text)
        mac = key_mac(self._pepper, text)
        record = self._known.get(key_id) or await self._look_up(key_id)
        stored = record.mac if record is not None else "0" * len(mac)
        if not hmac.compare_digest(mac, stored) or record is None:
            raise InvalidApiKey("the API key is not known")
        if key_id not in self._known:
            self._remember(record)
        return record

    async def refresh(self) -> None:
        """Read every key of the snapshot again and drop those that are gone or disabled.

        Raises:
            DependencyDown: Redis does not answer or is empty; the snapshot stays as it is.
        """
        known = list(self._known)
        for begin in range(0, len(known), _BATCH):
            batch = known[begin : begin + _BATCH]
            for key_id, record in zip(batch, await self._read(batch), strict=True):
                if record is None:
                    self._known.pop(key_id, None)
                else:
                    self._known[key_id] = record

    async def refresh_forever(self) -> None:
        """Root task of a process that authenticates."""
        is_down = False
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self.refresh()
                if is_down:
                    _log.info("API keys are refreshed again")
                is_down = False
            except DependencyDown as error:
                if not is_down:
                    _log.warning("API keys are not refreshed, known ones keep working: %s", error)
                is_down = True

    def _remember(self, record: KeyRecord) -> None:
        while len(self._known) >= self._max_known:
            del self._known[next(iter(self._known))]
        self._known[record.key_id] = record

    async def _look_up(self, key_id: str) -> KeyRecord | None:
        return (await self._read([key_id]))[0]

    async def _read(self, key_ids: Sequence[str]) -> list[KeyRecord | None]:
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.exists(MARKER)
                for key_id in key_ids:
                    pipe.hgetall(redis_key(key_id))
                has_keys, *hashes = await pipe.execute()
            if not has_keys:
                raise DependencyDown(_EMPTY)
            tenants = await self._read_tenants({h["tenant"] for h in hashes if h.get("tenant")})
        return [_record(key_id, h, tenants) for key_id, h in zip(key_ids, hashes, strict=True)]

    async def _read_tenants(self, names: set[str]) -> dict[str, Tenant]:
        ordered = sorted(names)
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in ordered:
                pipe.hgetall(redis_tenant(name))
            hashes = await pipe.execute()
        found = [_tenant(name, h) for name, h in zip(ordered, hashes, strict=True)]
        return {tenant.name: tenant for tenant in found if tenant is not None}


def _tenant(name: str, stored: Mapping[str, str]) -> Tenant | None:
    """A tenant, unless its record is not whole: one slip of an operator must not stop everybody's gateway."""
    if not stored.get("cache_salt"):
        return None
    try:
        salt, priority_class = bytes.fromhex(stored["cache_salt"]), int(stored.get("priority_class", "0"))
        check_priority_class(priority_class)
    except (ValueError, BadRequest) as error:
        _log.warning("the record of tenant %s is malformed, its keys are not accepted: %s", name, error)
        return None
    return Tenant(name=name, cache_salt=salt, priority_class=priority_class)


def _record(key_id: str, stored: Mapping[str, str], tenants: Mapping[str, Tenant]) -> KeyRecord | None:
    tenant = tenants.get(stored.get("tenant", ""))
    if tenant is None or stored.get("disabled", "0") != "0" or "mac" not in stored:
        return None
    return KeyRecord(key_id=key_id, name=stored.get("name", ""), mac=stored["mac"], tenant=tenant)
