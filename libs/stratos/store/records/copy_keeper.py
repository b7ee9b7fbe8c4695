"""Keeps a copy of a snapshot on the disk, so that a restarted process serves while Redis is away."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from stratos.common.errors import BadRequest
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.snapshot_copy import SnapshotCopy, copy_of, load_copy, save_copy

_log = logging.getLogger(__name__)


class CopyKeeper:
    """One file, read once and written when something has changed.

    Args:
        follower: whose snapshot is copied.
        path: of the file; its folder is made.
        interval_s: between two writes at least.
    """

    def __init__(self, follower: SnapshotFollower, path: Path, interval_s: float) -> None:
        self._follower = follower
        self._path = path
        self._interval_s = interval_s
        self._saved_position: int | None = None

    def restore(self) -> None:
        """Start the snapshot from the file; one that cannot be used is reported and left alone."""
        try:
            copy = load_copy(self._path)
        except BadRequest as error:
            _log.warning("the copy of tenants, keys and adapters is not used: %s", error.message)
            return
        if copy is not None:
            self._follower.restore(copy, time.time())
            _log.info("%d tenants, keys and adapters were read from %s", len(copy.records), self._path)

    async def run(self) -> None:
        """Root task: write the file when the snapshot has changed; and once more at the end."""
        try:
            while True:
                await self.save()
                await asyncio.sleep(self._interval_s)
        finally:
            if (copy := self._changed()) is not None:
                self._write(copy)

    async def save(self) -> None:
        """Write the file if the snapshot has changed."""
        if (copy := self._changed()) is not None:
            await asyncio.to_thread(self._write, copy)

    def _changed(self) -> SnapshotCopy | None:
        snapshot = self._follower.snapshot
        if not self._follower.is_following or snapshot.position == self._saved_position:
            return None
        return copy_of(snapshot, self._follower.age_s, time.time())

    def _write(self, copy: SnapshotCopy) -> None:
        try:
            save_copy(copy, self._path)
        except OSError as error:
            _log.warning("the copy of tenants, keys and adapters cannot be written: %s", error)
        else:
            self._saved_position = copy.revision
