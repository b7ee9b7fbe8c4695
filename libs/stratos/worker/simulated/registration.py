"""Tells routers of the workers of this process: one file in the folder of their discovery."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from stratos.core.placement import WorkerRef
from stratos.rpc.serving.address_file import replace_text


class Registration:
    """One file, removed at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.json"

    def publish(self, workers: Iterable[WorkerRef]) -> None:
        """These are the workers now."""
        entries = [{"worker_id": ref.worker_id, "address": ref.address, "role": ref.role.value} for ref in workers]
        replace_text(self._path, json.dumps(entries))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
