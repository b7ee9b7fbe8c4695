"""The lora-registry as a real process over a real Redis."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratos.common.errors import DependencyDown, InvalidAdapter, ModelNotFound, NotFound
from stratos.rpc.clients.registry import RegistryClient
from stratos.rpc.serving.address_file import read_address_file
from stratos.store.redis import open_redis
from tests.support.promises import Promised
from tests.support.reference.adapter_folders import BASE_DIGEST, WEIGHTS, write_adapter
from tests.support.servers import warm_process
from tests.support.servers.record_stores import marked_store
from tests.support.servers.redis_server import RedisServer


async def mark(redis_url: str, folder: Path) -> None:
    """Set up the store, as an installation does once."""
    async with open_redis(redis_url) as redis:
        await marked_store(redis, folder / "store")


@asynccontextmanager
async def registry(folder: Path, redis_url: str) -> AsyncIterator[RegistryClient]:
    """A process that must end with code 0 on SIGTERM."""
    address_file = folder / "registry.json"
    env = {
        **os.environ,
        "STRATOS_LORA_REGISTRY_REDIS_URL": redis_url,
        "STRATOS_LORA_REGISTRY_OBJECT_STORE__URL": f"file://{folder}/store",
        "STRATOS_LORA_REGISTRY_ADDRESS_FILE": str(address_file),
    }
    process = await asyncio.to_thread(
        warm_process.begin, "stratos_lora_registry", env=env, files=warm_process.INHERITED
    )
    try:
        while (address := read_address_file(address_file)) is None:
            assert process.poll() is None
            await asyncio.sleep(0.02)
        client = RegistryClient(address.address)
        yield client
        await client.close()
        process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
    finally:
        await asyncio.to_thread(process.end)


async def test_an_adapters_life_through_the_process(redis_url: str, tmp_path: Path) -> None:
    await mark(redis_url, tmp_path)
    write_adapter(tmp_path / "store" / "adapters" / "one")
    write_adapter(tmp_path / "store" / "adapters" / "bad")
    (tmp_path / "store" / "adapters" / "bad" / WEIGHTS).write_bytes(b"broken")
    async with registry(tmp_path, redis_url) as client:
        made = await client.register(name="one", uri="adapters/one", base_model_digest=BASE_DIGEST)
        assert (made.rank, made.alpha, made.target_modules) == (2, 4.0, ("q_proj",))
        assert await client.list("acme") == (made,)
        with pytest.raises(InvalidAdapter, match=r"adapters/bad: .*not a safetensors file"):
            await client.register(name="bad", uri="adapters/bad", base_model_digest=BASE_DIGEST)
        with pytest.raises(NotFound):
            await client.register(name="none", uri="adapters/none", base_model_digest=BASE_DIGEST)
        await client.delete("", "one")
        with pytest.raises(ModelNotFound, match="no adapter named 'one'"):
            await client.delete("", "one")
        assert await client.list("acme") == ()
    async with registry(tmp_path, redis_url) as client:  # nothing is kept in the process
        assert await client.list("acme") == ()


async def test_redis_dies_and_comes_back(redis_server: RedisServer, tmp_path: Path, promised: Promised) -> None:
    await mark(redis_server.url, tmp_path)
    write_adapter(tmp_path / "store" / "one")
    async with registry(tmp_path, redis_server.url) as client:
        made = await client.register(name="one", uri="one", base_model_digest=BASE_DIGEST)
        redis_server.kill()
        calls = (
            lambda: client.list("acme"),
            lambda: client.delete("", "one"),
            lambda: client.register(name="two", uri="one", base_model_digest=BASE_DIGEST),
        )
        for call in calls:
            with (
                promised("the registry names a Redis that is gone", 1.0),
                pytest.raises(DependencyDown, match="Redis does not answer") as caught,
            ):
                await call()
            assert caught.value.after_s is not None
        redis_server.start()
        assert await client.list("acme") == (made,)
        assert (await client.register(name="two", uri="one", base_model_digest=BASE_DIGEST)).name == "two"


async def test_it_starts_while_redis_is_down(redis_server: RedisServer, tmp_path: Path) -> None:
    await mark(redis_server.url, tmp_path)
    write_adapter(tmp_path / "store" / "one")
    redis_server.kill()
    async with registry(tmp_path, redis_server.url) as client:
        with pytest.raises(DependencyDown):
            await client.list("acme")
        redis_server.start()
        assert (await client.register(name="one", uri="one", base_model_digest=BASE_DIGEST)).name == "one"


async def test_a_registry_that_is_gone_is_a_dependency_down() -> None:
    client = RegistryClient("127.0.0.1:9")
    with pytest.raises(DependencyDown, match="the lora-registry did not answer"):
        await client.list("acme")
    await client.close()
