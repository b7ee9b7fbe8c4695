"""The digest of files: SHA-256 over (name, size, SHA-256 of each piece), so that pieces are hashed side by side."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PIECE_BYTES = 32 << 20
"""Part of the digest's definition."""
MAX_THREADS = 8
_CHUNK_BYTES = 1 << 18
_HEX = re.compile(r"[0-9a-f]{64}\Z")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal, as digests are written everywhere."""
    return _HEX.match(text) is not None


def never() -> bool:
    """The digest is wanted to its end."""
    return False


def files_digest(files: Iterable[tuple[str, Path]], is_over: Callable[[], bool] = never) -> str:
    """SHA-256 (hex) over (name, size, pieces) of files, in the order given; reads on several cores at once.

    Args:
        files: name and path of each.
        is_over: asked again and again, from several threads: whether the digest is not wanted any more.

    Raises:
        OSError: a file cannot be read, or became shorter while it was, or ``is_over``.
    """
    pool = ThreadPoolExecutor(min(MAX_THREADS, _num_cores()), "hash")
    try:
        named = [(name, path, path.stat().st_size) for name, path in files]
        pieces = [
            [pool.submit(_piece_digest, path, begin, size, is_over) for begin in range(0, size, PIECE_BYTES)]
            for _, path, size in named
        ]
        hashed = zip(named, pieces, strict=True)
        return digest_of_pieces((name, size, (f.result() for f in futures)) for (name, _, size), futures in hashed)
    finally:
        pool.shutdown(cancel_futures=True)


def digest_of_pieces(files: Iterable[tuple[str, int, Iterable[bytes]]]) -> str:
    """The same of files whose pieces were hashed before: name, size in bytes, and SHA-256 of each piece."""
    digest = hashlib.sha256()
    for name, size, pieces in files:
        digest.update(f"{name}\0{size}\0".encode())
        for piece in pieces:
            digest.update(piece)
    return digest.hexdigest()


def _piece_digest(path: Path, begin: int, size: int, is_over: Callable[[], bool]) -> bytes:
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))  # one buffer, which stays in the cache
    left = min(PIECE_BYTES, size - begin)
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while left:
            count = file.readinto(chunk[: min(left, _CHUNK_BYTES)])
            if not count:
                raise OSError(0, "it became shorter while it was read", str(path))
            if is_over():
                raise InterruptedError(0, "its digest is not wanted any more", str(path))
            digest.update(chunk[:count])
            left -= count
    return digest.digest()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
