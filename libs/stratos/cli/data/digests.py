"""Digests of model folders that earlier runs computed, by the state of the files: unchanged weights are not read.

A digest is kept as it is handed over (``core.files.handed_digest``): with name, size, inode and times of every file.
One whose files changed within the last seconds is not kept: a write in the same tick of the file system's clock would
not show.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stratos.cli.data.folder import write_json_atomically
from stratos.core.files.digest import never
from stratos.core.files.model_files import digest_to_hand_over

SETTLED_S = 2.0
MAX_FOLDERS = 64


async def digest_of(model: Path, memory: Path) -> str:
    """``remembered_digest`` in a thread, which reads no further once its caller is cancelled.

    Raises:
        InvalidCheckpoint: as ``digest_to_hand_over``.
    """
    over = threading.Event()
    try:
        return await asyncio.to_thread(remembered_digest, model, memory, over.is_set)
    finally:
        over.set()


def remembered_digest(model: Path, memory: Path, is_over: Callable[[], bool] = never) -> str:
    """The digest of ``model`` to hand over, computed only where the file ``memory`` does not have it.

    Raises:
        InvalidCheckpoint: as ``digest_to_hand_over``.
    """
    known = _read(memory)
    name = str(model.resolve())
    handed = digest_to_hand_over(model, known.get(name, ""), is_over)
    if handed != known.get(name) and _is_settled(model):
        rest = [item for item in known.items() if item[0] != name][-(MAX_FOLDERS - 1) :]
        write_json_atomically(memory, dict([*rest, (name, handed)]))
    return handed


def _read(memory: Path) -> dict[str, str]:
    try:
        content = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    items = content.items() if isinstance(content, dict) else ()
    return {name: text for name, text in items if isinstance(text, str)}


def _is_settled(model: Path) -> bool:
    return time.time() - max(path.stat().st_ctime for path in model.iterdir()) > SETTLED_S
