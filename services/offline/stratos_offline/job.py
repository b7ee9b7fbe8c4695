"""A job from its file to its results, and on from where an earlier run of it ended.

    check the file -> job.json -> blocks, without those that are computed -> the pool -> files in the order of lines

``job.json`` names the job: the digest of the file and of what decides results, and the time that answers carry.  A
folder that has another job's is refused.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest, ModelNotFound
from stratos.core.files.model_files import read_model_files
from stratos.store.urls import opened_store
from stratos_offline.blocks import BlockReport, BlockStore, BlockTask, cut
from stratos_offline.lines import LineFile
from stratos_offline.options import STORE_ATTEMPTS, EngineAsk, JobOptions, LineIdentity, digest_of
from stratos_offline.pools.contract import BlockPool
from stratos_offline.prefixes import prefix_order
from stratos_offline.results import ERRORS, OUTPUT, ResultFiles

JOB, LOCK = "job.json", ".lock"
OpenPool = Callable[[EngineAsk, str], BlockPool]
"""Makes the pool for engines and an endpoint."""


@dataclass(slots=True)
class JobProgress:
    """How far a job is."""

    num_lines: int
    num_blocks: int
    num_done: int = 0
    """Lines that are computed."""
    num_failed: int = 0
    num_kept_blocks: int = 0
    """Blocks that an earlier run had computed."""
    is_over: bool = False

    def note(self, report: BlockReport) -> None:
        """Count a block."""
        self.num_done += report.num_lines
        self.num_failed += report.num_failed
        self.num_kept_blocks += report.was_there


@dataclass(frozen=True, slots=True)
class Job:
    """One run.

    Args:
        options: what is asked.
        open_pool: makes what computes.
        now_unix_s: time that answers of a new job carry.
        show: told of progress.
    """

    options: JobOptions
    open_pool: OpenPool
    now_unix_s: int
    show: Callable[[JobProgress], None] = lambda progress: None

    def run(self) -> JobProgress:
        """Compute what is not computed yet, and write the files of results.

        Raises:
            BadRequest: the file, a folder of another job, or one in which another run is at work.
            ModelNotFound: lines name another model.
            StratosError: it cannot go on; what was computed is kept.
        """
        with LineFile(Path(self.options.file)) as file:
            self._check_models(file)
            with self._owned_folder():
                return self._go_on(file)

    def _go_on(self, file: LineFile) -> JobProgress:
        job, identity, is_done = self._take_folder(file)
        progress = JobProgress(len(file), 0)
        ask = EngineAsk(engine=self.options.engine, identity=identity, store=self.options.store(job))
        if is_done:
            progress.num_done, progress.num_failed = len(file), self._facts().get("num_failed", 0)
        else:
            tasks, left = asyncio.run(self._stage(file, ask, job, progress))
            self._compute(ask, file.endpoint, left, progress)
            asyncio.run(self._write(ask, tasks, ResultFiles(self._out, len(file), file.num_bytes)))
            found = {"is_done": True, "num_failed": progress.num_failed, "has_blocks": True}
            self._keep_facts({**self._facts(), **found})
        if self._facts().get("has_blocks"):  # also those that a run left which ended here
            asyncio.run(self._drop(ask, job))
            self._keep_facts({**self._facts(), "has_blocks": False})
        progress.is_over = True
        self.show(progress)
        return progress

    @property
    def _out(self) -> Path:
        return Path(self.options.out)

    @contextmanager
    def _owned_folder(self) -> Iterator[None]:
        """No other run on this machine is at work in it, for as long as this one is; it may be killed."""
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadRequest(f"another run is at work in {self._out}", param="--out") from error
            yield

    def _check_models(self, file: LineFile) -> None:
        name = self.options.engine.served_name
        for other in file.models:
            if other != name:
                raise ModelNotFound(f"the file names the model {other!r}, and engines serve {name!r}", param="model")

    def _take_folder(self, file: LineFile) -> tuple[str, LineIdentity, bool]:
        """Digest of the job, names of its lines, and whether its results are there."""
        options, out = self.options, self._out
        model = read_model_files(Path(options.engine.model_path)).digest
        facts = json.dumps(options.engine.result_facts, sort_keys=True)
        name = options.name or f"batch_{file.digest[:24]}"
        asked = digest_of(file.digest, model, facts, name, options.salt)
        found = self._facts()
        if found and found.get("asked") != asked:
            text = f"{out} has the results of another file, model or option; take another folder"
            raise BadRequest(text, param="--out")
        if not found:
            found = {"asked": asked, "created_unix_s": self.now_unix_s, "file": file.digest, "model": model}
            found |= {"run": secrets.token_hex(8), "block_lines": options.block_lines}
            self._keep_facts(found)
        identity = LineIdentity(name=name, created_unix_s=found["created_unix_s"], salt=options.salt)
        # The folder's own part of it keeps jobs apart that begin in one second with one store.
        job = digest_of(asked, json.dumps(asdict(identity), sort_keys=True), found.get("run", ""))
        is_there = all((out / name).is_file() for name in (OUTPUT, ERRORS))
        return job, identity, bool(found.get("is_done")) and is_there

    def _facts(self) -> dict[str, Any]:
        path = self._out / JOB
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            return dict(found)
        except (ValueError, TypeError) as error:
            raise BadRequest(f"{path} is damaged; take another folder", param="--out") from error

    def _keep_facts(self, facts: dict[str, Any]) -> None:
        part = self._out / f".{JOB}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(facts, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())  # without it, checkpoints that outlive the machine belong to no job
        part.replace(self._out / JOB)

    async def _stage(
        self, file: LineFile, ask: EngineAsk, job: str, progress: JobProgress
    ) -> tuple[list[BlockTask], list[BlockTask]]:
        """Put blocks into the store: all of them, and those that have to be computed."""
        tasks, left = list[BlockTask](), list[BlockTask]()
        async with opened_store(ask.store, num_attempts=STORE_ATTEMPTS) as objects:
            store = BlockStore(objects)
            await objects.put("job", json.dumps({"name": ask.identity.name}).encode())
            await store.forget_tries()
            kept, num = await store.kept(), int(self._facts()["block_lines"])
            # Blocks are those of the first run, whatever this one is asked.
            for task, content in cut(file, prefix_order(file.keys), job, num):
                tasks.append(task)
                if task.key in kept and (report := await store.find(task)) is not None:
                    progress.note(report)
                else:
                    await store.put_lines(task, content)
                    left.append(task)
        file.check_unchanged()
        progress.num_blocks = len(tasks)
        return tasks, left

    def _compute(self, ask: EngineAsk, endpoint: str, left: list[BlockTask], progress: JobProgress) -> None:
        self.show(progress)
        if not left:
            return
        for report in self.open_pool(ask, endpoint).run(left):
            progress.note(report)
            self.show(progress)

    async def _write(self, ask: EngineAsk, tasks: list[BlockTask], files: ResultFiles) -> None:
        async with opened_store(ask.store, num_attempts=STORE_ATTEMPTS) as objects:
            store = BlockStore(objects)

            async def rows() -> AsyncIterator[Any]:
                for task in tasks:
                    yield await store.rows(task)

            await files.write(rows())

    async def _drop(self, ask: EngineAsk, job: str) -> None:
        if not self.options.store_url:
            # With what killed processes left half written.
            return shutil.rmtree(self.options.own_store(job), ignore_errors=True)
        async with opened_store(ask.store, num_attempts=STORE_ATTEMPTS) as objects:
            await BlockStore(objects).drop()
            await objects.delete("job")
