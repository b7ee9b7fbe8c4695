"""An engine as Ray makes it: a class whose instances are actors, called with a batch of one block."""

from __future__ import annotations

import os
from concurrent.futures import CancelledError
from typing import Any

from stratos.common.errors import StratosError
from stratos_offline.blocks import BlockTask
from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.options import EngineAsk


class EngineActor:
    """One engine.

    Args:
        ask: as JSON, since what is passed to an actor is pickled otherwise.
        endpoint: of all lines.
    """

    def __init__(self, ask: str, endpoint: str) -> None:
        self._worker = BlockWorker(EngineAsk.parse(ask), endpoint)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Compute the blocks of a batch; an error of ours is a row, since Ray repeats what raises."""
        rows = [
            self._report(BlockTask(key=str(key), num_lines=int(num), begin=int(begin)))
            for key, num, begin in zip(batch["key"], batch["num_lines"], batch["begin"], strict=True)
        ]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _report(self, task: BlockTask) -> dict[str, Any]:
        try:
            return {**self._worker.compute(task).to_dict(), "error": "", "message": "", "status": 0}
        except CancelledError:  # its worker has ended: Ray makes another actor, as for one that is lost
            os._exit(1)
        except StratosError as error:
            found = {"key": task.key, "num_lines": task.num_lines, "num_failed": 0, "was_there": False}
            return {**found, "error": error.code, "message": error.message, "status": error.http_status}
