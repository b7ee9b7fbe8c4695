"""Adapter metadata in Redis.

    stratos:adapter:<version>      hash, one immutable version: tenant, name, base_model_digest, uri, digest, rank,
                                   alpha, target_modules (JSON), num_bytes, created_unix_s
    stratos:adapters:<tenant>      hash, name -> version: what the names of a tenant point to; "" is every tenant

``<version>`` is content-addressed: SHA-256 over tenant, name, base model digest and content digest.  Registering
the same content again finds the same version; only ``uri`` follows, since content may move.  A version that no
name points to any more is kept for ``_SUPERSEDED_TTL_S`` (to look at what ran) and then expires.  Every change
is one Lua script, so readers never see a name without its version.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from redis.asyncio import Redis

from stratos.common.errors import ModelNotFound
from stratos.core.adapter import Adapter
from stratos.store.redis import translate_redis_errors

_SUPERSEDED_TTL_S = 30 * 24 * 3600

# KEYS: names, version record. ARGV: name, version, ttl, prefix of version records, field, value, ...
_REGISTER = """
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old and old ~= ARGV[2] then redis.call('EXPIRE', ARGV[4] .. old, ARGV[3]) end
local created = redis.call('HGET', KEYS[2], 'created_unix_s')
for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
if created then redis.call('HSET', KEYS[2], 'created_unix_s', created) end
redis.call('PERSIST', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGETALL', KEYS[2])
"""
# KEYS: names. ARGV: name, ttl, prefix. Answers 1 if the name was there.
_DELETE = """
local old = redis.call('HGET', KEYS[1], ARGV[1])
if not old then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('EXPIRE', ARGV[3] .. old, ARGV[2])
return 1
"""
# KEYS: names, best last. ARGV: prefix. Answers version records.
_READ = """
local versions, records = {}, {}
for _, names in ipairs(KEYS) do
  local all = redis.call('HGETALL', names)
  for i = 1, #all, 2 do versions[all[i]] = all[i + 1] end
end
for _, version in pairs(versions) do
  table.insert(records, redis.call('HGETALL', ARGV[1] .. version))
end
return records
"""
_PREFIX = "stratos:adapter:"


class AdapterCatalogue:
    """Reads and writes the records; every method raises ``DependencyDown`` when Redis does not answer.

    Args:
        redis: with decoded answers, see ``stratos.store.redis``.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._register = redis.register_script(_REGISTER)
        self._delete = redis.register_script(_DELETE)
        self._read = redis.register_script(_READ)

    async def check(self) -> None:
        """Ask Redis for a sign of life."""
        with translate_redis_errors():
            await self._redis.ping()

    async def put(self, adapter: Adapter) -> Adapter:
        """Add a version, or find it again, and point the name to it; returns it as stored."""
        version = _version(adapter)
        fields = [text for pair in _to_fields(adapter).items() for text in pair]
        with translate_redis_errors():
            flat = await self._register(
                keys=[_names_key(adapter.tenant), _PREFIX + version],
                args=[adapter.name, version, _SUPERSEDED_TTL_S, _PREFIX, *fields],
            )
        return _from_flat(flat)

    async def list(self, tenant: str) -> list[Adapter]:
        """Adapters a tenant may use, sorted by name; its own hide those of every tenant with the same name."""
        with translate_redis_errors():
            records = await self._read(keys=_readable(tenant), args=[_PREFIX])
        return sorted((_from_flat(flat) for flat in records if flat), key=lambda adapter: adapter.name)

    async def delete(self, tenant: str, name: str) -> None:
        """Take a name away from its owner.

        Raises:
            ModelNotFound: the tenant owns no adapter of that name.
        """
        with translate_redis_errors():
            was_there = await self._delete(keys=[_names_key(tenant)], args=[name, _SUPERSEDED_TTL_S, _PREFIX])
        if not was_there:
            raise ModelNotFound(f"there is no adapter named {name!r}", param="model")


def _names_key(tenant: str) -> str:
    return f"stratos:adapters:{tenant}"


def _readable(tenant: str) -> list[str]:
    return [_names_key(""), _names_key(tenant)] if tenant else [_names_key("")]


def _version(adapter: Adapter) -> str:
    parts = (adapter.tenant, adapter.name, adapter.base_model_digest, adapter.digest)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _to_fields(adapter: Adapter) -> dict[str, str]:
    fields = {name: str(value) for name, value in asdict(adapter).items()}
    return fields | {"target_modules": json.dumps(adapter.target_modules)}


def _from_flat(flat: list[str]) -> Adapter:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return Adapter(
        tenant=fields["tenant"],
        name=fields["name"],
        base_model_digest=fields["base_model_digest"],
        uri=fields["uri"],
        digest=fields["digest"],
        rank=int(fields["rank"]),
        alpha=float(fields["alpha"]),
        target_modules=tuple(json.loads(fields["target_modules"])),
        num_bytes=int(fields["num_bytes"]),
        created_unix_s=int(fields["created_unix_s"]),
    )
