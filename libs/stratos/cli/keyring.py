"""API keys from the command line: the platform's own key, and ``stratos keys``."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from stratos.cli.data.credentials import Credentials, load_credentials, save_credentials
from stratos.cli.data.folder import DataDir
from stratos.cli.data.platform_facts import PlatformFacts
from stratos.store.key_store import KeyStore
from stratos.store.keys import mint_key, redis_key
from stratos.store.redis import open_redis, translate_redis_errors

OWN_TENANT = "default"
OWN_NAME = "stratos up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedKey:
    """A key as ``stratos keys list`` shows it; its text is stored nowhere."""

    key_id: str
    tenant: str
    name: str
    disabled: bool


async def ensure_api_key(redis_url: str, credentials: Credentials, data: DataDir) -> str:
    """The key that ``stratos up`` prints: made once per data directory, stored again when Redis has lost it."""
    key = credentials.api_key or mint_key()
    async with _open(redis_url) as redis:
        await KeyStore(redis, credentials.pepper).create_key(OWN_TENANT, OWN_NAME, key=key)
    if key != credentials.api_key:
        save_credentials(data, dataclasses.replace(credentials, api_key=key))
    return key


async def create_key(facts: PlatformFacts, data_dir: Path, *, tenant: str, name: str) -> str:
    """Make a key for a running platform."""
    pepper = load_credentials(DataDir(data_dir)).pepper
    async with _open(facts.redis_url) as redis:
        return await KeyStore(redis, pepper).create_key(tenant, name)


async def revoke_key(facts: PlatformFacts, data_dir: Path, *, key_id: str) -> None:
    """Disable a key; gateways drop it within seconds."""
    pepper = load_credentials(DataDir(data_dir)).pepper
    async with _open(facts.redis_url) as redis:
        await KeyStore(redis, pepper).revoke_key(key_id)


async def list_keys(facts: PlatformFacts) -> list[ListedKey]:
    """All keys of a platform, by tenant and name."""
    found: list[ListedKey] = []
    async with _open(facts.redis_url) as redis:
        async for name in redis.scan_iter(match=redis_key("*"), count=500):
            stored = await redis.hgetall(name)
            found.append(
                ListedKey(
                    key_id=str(name).rpartition(":")[2],
                    tenant=str(stored.get("tenant", "")),
                    name=str(stored.get("name", "")),
                    disabled=stored.get("disabled", "0") != "0",
                )
            )
    return sorted(found, key=lambda key: (key.tenant, key.name, key.key_id))


@asynccontextmanager
async def _open(redis_url: str) -> AsyncIterator[Redis]:
    redis = open_redis(redis_url)
    try:
        with translate_redis_errors():
            yield redis
    finally:
        await redis.aclose()
