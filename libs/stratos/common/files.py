"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int | None = None, is_synced: bool = False) -> None:
    """Replace a file in one step: readers see the old content or the new, also where several threads write at once.

    Args:
        path: of the file; its folder is there.
        content: all of it.
        mode: permissions, whatever the umask; ``None`` gives those of any new file.
        is_synced: return once the content is on the disk.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        descriptor = os.open(part, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            if is_synced:
                os.fsync(descriptor)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
