"""A master, a replica and a sentinel as processes, with passwords: of the embedded build, or of another one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.cli.local.embedded_redis import server_binary
from tests.support.servers.redis_server import free_port
from tests.support.waiting import eventually

SERVICE, PASSWORD, SENTINEL_PASSWORD = "records", "of/the:server", "of-the-sentinel"
DOWN_AFTER_MS = 300


def binaries() -> dict[str, str]:
    """Name -> server binary: the embedded one, and that of the machine where it has one."""
    own = shutil.which("redis-server")
    return {"embedded": os.fspath(server_binary()), **({"installed": own} if own else {})}


class SentinelGroup:
    """Two servers, of which the sentinel names one.

    Args:
        binary: of the server.
        folder: for data and configuration.
    """

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.first, self.second, self._sentinel = free_port(), free_port(), free_port()
        password = PASSWORD.replace("/", "%2F").replace(":", "%3A")
        self.url = (
            f"redis+sentinel://:{password}@127.0.0.1:{free_port()},127.0.0.1:{self._sentinel}/{SERVICE}/0"
            f"?sentinel_password={SENTINEL_PASSWORD}"
        )
        """The first sentinel of the URL does not exist."""

    async def start(self) -> None:
        """Until the sentinel knows the replica, and the replica has what the master has."""
        self._run(self.first)
        self._run(self.second, "--replicaof", "127.0.0.1", str(self.first))
        await eventually(lambda: self._has(self.second, "master_link_status", "up"), "the replica follows")
        config = self._folder / "sentinel.conf"
        lines = (
            f"port {self._sentinel}",
            f'dir "{self._folder}"',
            f"requirepass {SENTINEL_PASSWORD}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.first} 1",
            f"sentinel auth-pass {SERVICE} {PASSWORD}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 2000",
        )
        config.write_text("\n".join(lines) + "\n")
        self._spawn(self._sentinel, os.fspath(config), "--sentinel")
        await eventually(self._knows_replica, "the sentinel knows the replica")

    async def until_replicated(self) -> None:
        """The replica has all that the master has said so far."""
        said = (await self._replication(self.first))["master_repl_offset"]

        async def has_it() -> bool:
            found = await self._replication(self.second)
            return bool(found["master_link_status"] == "up" and found["slave_repl_offset"] >= said)

        await eventually(has_it, "the replica has it")

    def kill_first(self) -> None:
        """SIGKILL of the first master."""
        process = self._processes.pop(self.first)
        process.kill()
        process.wait()

    def start_first_again(self) -> None:
        """It comes back empty, and as a master until the sentinel tells it otherwise."""
        self._run(self.first)

    async def get(self, port: int, name: str) -> str | None:
        """What one server holds."""
        async with self._client(port) as client:
            found: str | None = await client.get(name)
        return found

    async def is_master(self, port: int) -> bool:
        return await self._has(port, "role", "master")

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run(self, port: int, *arguments: str) -> None:
        folder = self._folder / str(port)
        folder.mkdir(exist_ok=True)
        options = ("--port", str(port), "--dir", os.fspath(folder), "--save", "", "--requirepass", PASSWORD)
        more = ("--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0", *arguments)
        self._spawn(port, *options, *more)

    def _spawn(self, port: int, *arguments: str) -> None:
        self._processes[port] = subprocess.Popen([self._binary, *arguments], stdout=subprocess.DEVNULL)

    def _client(self, port: int, password: str = PASSWORD) -> Redis:
        return Redis(host="127.0.0.1", port=port, password=password, decode_responses=True)

    async def _replication(self, port: int) -> dict[str, Any]:
        async with self._client(port) as client:
            found: dict[str, Any] = await client.info("replication")
        return found

    async def _has(self, port: int, name: str, value: object) -> bool:
        try:
            return bool((await self._replication(port)).get(name) == value)
        except RedisError:
            return False

    async def _knows_replica(self) -> bool:
        try:
            async with self._client(self._sentinel, SENTINEL_PASSWORD) as client:
                return bool((await client.sentinel_master(SERVICE))["num-slaves"] == 1)
        except RedisError:
            return False


@asynccontextmanager
async def sentinel_group(binary: str, folder: Path) -> AsyncIterator[SentinelGroup]:
    """Started, and ended with everything that runs."""
    group = SentinelGroup(binary, folder)
    try:
        await group.start()
        yield group
    finally:
        group.close()
