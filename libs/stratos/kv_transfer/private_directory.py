"""The directory through which processes of one user and host meet."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_directory(path: Path) -> Path:
    """Make ``path`` (mode 0700), or check that it is a directory that only this user can enter.

    Raises:
        ValueError: it is something else.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} must be a directory of this user with mode 0700; name another one or fix it")
    return path
