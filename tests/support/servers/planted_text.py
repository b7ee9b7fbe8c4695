"""A search for planted texts in everything that a platform keeps: Redis with its own files, and folders on disk."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stratos.store.redis import open_redis


async def open_places(planted: Sequence[str], redis_url: str, *folders: Path) -> list[str]:
    """Names of keys and files that have one of the texts, as it is, as base64 or in hexadecimal digits."""
    needles = [needle for text in planted for needle in _forms(text)]
    found = [name for name, content in await _redis(redis_url) if any(needle in content for needle in needles)]
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        if any(needle in path.read_bytes() for needle in needles):
            found.append(str(path))
    return found


def _forms(text: str) -> Iterator[bytes]:
    """A text, and the parts of its base64 that do not depend on what stands before it."""
    raw = text.encode()
    yield raw
    yield raw.hex().encode()
    for offset in range(3):
        yield base64.b64encode(raw[offset : offset + (len(raw) - offset) // 3 * 3])


async def _redis(url: str) -> list[tuple[str, bytes]]:
    async with open_redis(url) as redis:
        client: Any = redis
        found = []
        for name in await client.keys():
            kind = await client.type(name)
            reads = {"hash": client.hgetall, "stream": client.xrange, "string": client.get, "set": client.smembers}
            read = reads.get(kind)
            content = await (client.zrange(name, 0, -1) if read is None else read(name))
            found.append((name, f"{name} {content}".encode()))
        return found
