"""Engine clients of both kinds over the same fake engines; run as a program it is the child of a ``ProcessEngine``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from stratos.core.adapter_files import AdapterFiles
from stratos.engine.core import EngineCore
from stratos.engine.engine import Engine, StepResult
from stratos.engine.fake import FakeConfig, FakeRunner
from stratos.engine.plan import StepPlan
from stratos.engine.settings import SchedulerConfig
from stratos.worker.engine_client import EngineClient
from stratos.worker.engine_process import run_engine_process
from stratos.worker.process_engine import ProcessEngine
from stratos.worker.thread_engine import ThreadEngine

COMMAND = (sys.executable, __file__)
EXIT_TOKEN = 4095
"""The process ends when a step runs this token."""


class SuddenRunner(FakeRunner):
    """A fake runner that can take its process along, and refuses one adapter."""

    def launch(self, plan: StepPlan) -> Any:
        if any(EXIT_TOKEN in row.token_ids for row in plan.rows):
            os._exit(7)
        return super().launch(plan)

    def load_adapter(self, files: AdapterFiles, pinned: Any = frozenset()) -> None:
        super().load_adapter(files, pinned)
        if files.shapes != {(0, "q_proj", "A"): (1, 2), (0, "q_proj", "B"): (2, 1)}:
            raise ValueError(f"shapes came as {files.shapes}")


def make_fake(settings: bytes) -> Engine:
    """An engine from JSON: ``fake`` and ``scheduler`` hold the fields of the two configurations."""
    values = json.loads(settings)
    return EngineCore(SuddenRunner(FakeConfig(**values["fake"])), SchedulerConfig(**values["scheduler"]))


def make_client(kind: str, fake: dict[str, Any], scheduler: dict[str, Any], **options: Any) -> EngineClient:
    """A client that is not started yet."""
    settings = json.dumps({"fake": fake, "scheduler": scheduler}).encode()
    if kind == "thread":
        return ThreadEngine(make_fake(settings))
    return ProcessEngine(settings, command=COMMAND, **options)


class Outputs:
    """Everything that the steps of a client produced."""

    def __init__(self, client: EngineClient) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.results: list[StepResult] = []
        client.subscribe(self._on_step)

    def _on_step(self, result: StepResult) -> None:
        self.results.append(result)
        for output in result.outputs:
            tokens = self.tokens.setdefault((output.key.request_id, output.index), [])
            assert output.offset == len(tokens)
            tokens += output.token_ids

    def collect(self, pick: Callable[[StepResult], Any]) -> list[Any]:
        """What ``pick`` finds in each result, in order."""
        return [item for result in self.results for item in pick(result)]


if __name__ == "__main__":
    run_engine_process(make_fake)
