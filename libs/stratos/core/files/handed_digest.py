"""The digest of a model folder as one process hands it to others: computed once in a run, not once in each process.

It travels as ``digest@state``: ``state`` names the files as they were when they were hashed.  A receiver compares
``state`` with the files that it sees, and hashes them itself where they differ or where nothing was handed over.

Trusted are the process that started the receiver, and the file system: a file with the name, size, inode, modification
time and change time of one that was hashed has its content.  The kernel sets the change time at every write and rename,
and no program can set it back, so weights that were exchanged while a platform runs are noticed at the next start of a
worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def state_of(files: Sequence[Path]) -> str:
    """Name (hex) of what the file system tells of files without reading them."""
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        facts = (path.name, stat.st_size, stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        digest.update(repr(facts).encode())
    return digest.hexdigest()


def hand_over(digest: str, state: str) -> str:
    """The text for ``receive``; ``state`` is from before the files were hashed, so a write in between is noticed."""
    return f"{digest}@{state}"


def digest_in(handed: str) -> str:
    """The digest that was handed over, whatever became of its files since; "" of nothing."""
    return handed.partition("@")[0]


def receive(handed: str, files: Sequence[Path]) -> str | None:
    """The digest of ``files``, or ``None`` where it has to be computed."""
    digest, _, state = handed.partition("@")
    return digest if handed and state == state_of(files) else None
