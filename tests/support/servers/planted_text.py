"""A search for planted texts in everything that a platform keeps: Redis with its own files, and folders on disk."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stratos.store.redis import open_redis

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{24,}")
_MAX_SEARCHED = 1 << 20
"""Bytes of a value or a file; weights of models are looked at as they are."""


async def open_places(planted: Sequence[str], redis_url: str, *folders: Path) -> list[str]:
    """Names of keys and files that have one of the texts, as it is, as base64, in hexadecimal digits or packed."""
    needles = [needle for text in planted for needle in _forms(text)]
    return [name for name, content in await kept_by(redis_url, *folders) if has_one(content, needles)]


async def kept_by(redis_url: str, *folders: Path) -> list[tuple[str, bytes]]:
    """Everything in Redis, by key, and all files of folders, by path."""
    return [*await _redis(redis_url), *_files(folders)]


def _files(folders: Sequence[Path]) -> list[tuple[str, bytes]]:
    while True:
        paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        try:
            return [(str(path), path.read_bytes()) for path in paths]
        except FileNotFoundError:  # it has gone, or has its last name by now: a tier on disk lives
            continue


def has_one(content: bytes, needles: Iterable[bytes]) -> bool:
    """Whether one of the needles is in it, or in what its parts unpack to."""
    views = list(_views(content))
    return any(needle in view for needle in needles for view in views)


def _forms(text: str) -> Iterator[bytes]:
    """A text, as it stands in JSON, and the parts of its base64 that do not depend on what stands before it."""
    raw = text.encode()
    yield raw
    yield json.dumps(text)[1:-1].encode()
    yield raw.hex().encode()
    for offset in range(3):
        yield base64.b64encode(raw[offset : offset + (len(raw) - offset) // 3 * 3])


def id_forms(ids: Sequence[int]) -> Iterator[bytes]:
    """Tokens as JSON has them, and as whole numbers of two, four and eight bytes."""
    for separators in ((",", ":"), (", ", ": ")):
        yield json.dumps(ids, separators=separators)[1:-1].encode()
    for kind in "Hiq":
        yield struct.pack(f"<{len(ids)}{kind}", *ids)


def text_forms(text: str) -> list[bytes]:
    """What to look for where a text may be."""
    return list(_forms(text))


def _views(content: bytes) -> Iterator[bytes]:
    """Content, and what it, or base64 within it, unpacks to; a record may have a letter before its base64."""
    yield content
    runs = _BASE64.findall(content) if len(content) < _MAX_SEARCHED else []
    for packed in (content, *(_decoded(run[begin:]) for run in runs for begin in (0, 1))):
        if unpacked := _unpacked(packed):
            yield unpacked


def _decoded(run: bytes) -> bytes:
    return binascii.a2b_base64(run.rstrip(b"=")[: len(run) // 4 * 4])


def _unpacked(part: bytes) -> bytes:
    """Of gzip or zlib."""
    if part[:2] != b"\x1f\x8b" and part[:1] != b"\x78":
        return b""
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(part)
    except zlib.error:
        return b""


async def _redis(url: str) -> list[tuple[str, bytes]]:
    async with open_redis(url) as redis:
        client: Any = redis
        found = []
        for name in await client.keys():
            kind = await client.type(name)
            reads = {"hash": client.hgetall, "stream": client.xrange, "string": client.get, "set": client.smembers}
            read = reads.get(kind)
            content = await (client.zrange(name, 0, -1) if read is None else read(name))
            found.append((name, b"\0".join([name.encode(), *_strings(content)])))
        return found


def _strings(content: Any) -> Iterator[bytes]:
    if isinstance(content, dict):
        content = [*content.keys(), *content.values()]
    if isinstance(content, list | set | tuple):
        for one in content:
            yield from _strings(one)
    elif content is not None:
        yield str(content).encode(errors="surrogateescape")
