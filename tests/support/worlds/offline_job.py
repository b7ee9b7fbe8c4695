"""Jobs of files of requests whose engines are scripted, in threads of the test's process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratos_offline.blocks import BlockReport, BlockTask, Row
from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.engines.contract import LineEngine, NumberedLine
from stratos_offline.job import Job, JobProgress
from stratos_offline.options import EngineAsk, EngineOptions, JobOptions
from tests.support.paths import BASE_MODEL

CREATED_UNIX_S = 1_700_000_000
URL = "/v1/completions"


def write_lines(path: Path, prompts: Sequence[str], url: str = URL, **more: Any) -> Path:
    """A file with a line for each prompt, whose ids are c0, c1, ..."""
    rows = (
        {"custom_id": f"c{number}", "method": "POST", "url": url, "body": {"model": "base", "prompt": text, **more}}
        for number, text in enumerate(prompts)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def job_options(file: Path, out: Path, **changes: Any) -> JobOptions:
    engine = {"model_path": str(BASE_MODEL), "engine": "echo", **changes.pop("engine", {})}
    return JobOptions(file=str(file), out=str(out), engine=EngineOptions(**engine), **changes)


@dataclass
class ScriptedEngine:
    """Says a line's prompt backwards; prompts that begin with "bad" are errors."""

    answered: list[int] = field(default_factory=list)
    """Numbers of lines, in the order in which they came."""
    before: Callable[[Sequence[NumberedLine]], None] = lambda lines: None

    async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
        self.before(lines)
        self.answered += [number for number, _ in lines]
        return [self._row(number, line["custom_id"], line["body"]["prompt"]) for number, line in lines]

    def _row(self, number: int, custom_id: str, prompt: str) -> Row:
        return number, not prompt.startswith("bad"), json.dumps({"custom_id": custom_id, "text": prompt[::-1]})

    @asynccontextmanager
    async def open(self, ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
        yield self


@dataclass
class InlinePool:
    """One engine, asked by the driver itself."""

    worker: BlockWorker
    tasks: list[BlockTask] = field(default_factory=list)

    def run(self, tasks: Sequence[BlockTask]) -> Iterator[BlockReport]:
        self.tasks += tasks
        with self.worker:
            for task in tasks:
                yield self.worker.compute(task)


def run_scripted(options: JobOptions, engine: ScriptedEngine, now_unix_s: int = CREATED_UNIX_S) -> JobProgress:
    """Run a job by one scripted engine."""
    return Job(options, lambda ask, url: InlinePool(BlockWorker(ask, url, engine.open)), now_unix_s).run()


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
