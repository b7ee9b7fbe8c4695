"""Facts that ``stratos doctor`` judges: read from the system, a Redis, an object store; nothing is changed.

Every function looks once and answers within seconds.  What cannot be reached is a text in the fact, not an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stratos.common.errors import NotFound, RequestTooLarge, StratosError
from stratos.store.redis import open_redis, translate_redis_errors
from stratos.store.settings import ObjectStoreConfig
from stratos.store.urls import open_store

TIMEOUT_S = 3.0
DRIVER_FACTS = Path("proc/driver/nvidia/version")
GPU_NODES = "dev/nvidia[0-9]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """Version and settings that a Redis reports of itself."""

    problem: str = ""
    """Why it cannot be used; the rest is empty then."""
    version: str = ""
    eviction: str = ""
    """Its ``maxmemory-policy``; empty where it does not tell."""
    skew_s: float = 0.0
    """Its clock less this machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """NVIDIA GPUs that the system shows."""

    num_devices: int
    driver: str
    """First line of the driver's text; empty without one."""


def read_gpus(root: Path = Path("/")) -> GpuFacts:
    """Device nodes and driver below ``root``."""
    try:
        driver = (root / DRIVER_FACTS).read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        driver = ""
    return GpuFacts(num_devices=len(list(root.glob(GPU_NODES))), driver=driver)


def free_shm_bytes(directory: Path) -> int | None:
    """Room on the file system that would hold ``directory``; ``None`` where there is none or it cannot be written."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not os.access(directory, os.W_OK | os.X_OK):
        return None
    return shutil.disk_usage(directory).free


def port_problem(host: str, port: int) -> str:
    """Why a server cannot listen there; empty if it can."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""


async def read_redis(url: str) -> RedisFacts:
    """Ask a Redis."""
    try:
        async with open_redis(url, timeout_s=TIMEOUT_S) as redis:
            with translate_redis_errors():
                server = await redis.info("server")
                memory = await redis.info("memory")
                sent = time.time()
                seconds, micros = await redis.time()
                now = (sent + time.time()) / 2
    except StratosError as error:
        return RedisFacts(problem=error.message)
    skew = seconds + micros / 1e6 - now
    return RedisFacts(
        version=str(server.get("redis_version", "")), eviction=str(memory.get("maxmemory_policy", "")), skew_s=skew
    )


async def object_store_problem(config: ObjectStoreConfig) -> str:
    """Why the store cannot be used; empty if it answers."""
    parts = urlsplit(config.url)
    if parts.scheme == "file" and (problem := _folder_problem(Path(parts.path))):
        return problem
    try:
        store = open_store(config, num_attempts=1)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await store.open()
                with contextlib.suppress(NotFound, RequestTooLarge):  # it answers, empty or full
                    await store.list_folder("models")
        finally:
            await store.close()
    except StratosError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:.0f} s"
    return ""


def _folder_problem(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def newest_change_s(folder: Path) -> float:
    """When the newest file of an installation was written (Unix time): a clock before that is wrong."""
    return max((path.stat().st_mtime for path in folder.rglob("*.py")), default=0.0)
