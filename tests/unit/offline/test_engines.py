"""Engines that end by themselves while blocks are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from stratos.common.errors import DependencyDown
from stratos.core.placement import WorkerRole
from stratos.store.local_store import LocalStore
from stratos_offline.blocks import BlockStore, BlockTask, Row
from stratos_offline.engines import worker
from stratos_offline.engines.block_worker import BlockWorker
from stratos_offline.engines.contract import LineEngine, NumberedLine
from stratos_offline.engines.whole import gateway_settings
from stratos_offline.engines.worker import running_worker
from stratos_offline.options import EngineAsk, EngineOptions, LineIdentity
from tests.support.worlds.offline_job import ScriptedEngine, job_options


def test_no_line_has_the_deadline_of_a_client() -> None:
    """Prompts and answers may be long, and a line that waits for others has not failed."""
    settings = gateway_settings(EngineOptions(model_path="/m", engine="fake"))
    day_s = 24 * 3600.0
    assert min(settings.http.max_deadline_s, settings.http.max_answer_s) > day_s
    assert min(settings.requests.placement_timeout_s, settings.requests.embedding_timeout_s) > day_s


class EndingLifecycle:
    """A worker that is warm, and ends when it is told to."""

    fault: asyncio.Event

    def __init__(self, service: Any, settings: Any, stop: asyncio.Event, ask: Any, is_warm: Callable[[], None]) -> None:
        self._stop, self._is_warm = stop, is_warm

    async def run(self) -> int:
        self._is_warm()
        ends = [asyncio.create_task(event.wait()) for event in (self._stop, self.fault)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return 1


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    event = EndingLifecycle.fault = asyncio.Event()
    monkeypatch.setattr(worker, "Lifecycle", EndingLifecycle)
    monkeypatch.setattr(worker, "worker_service", lambda role, settings: None)
    return event


@pytest.mark.timeout(20)
async def test_an_engine_whose_worker_ended_does_not_wait_for_it(fault: asyncio.Event) -> None:
    async def live() -> None:
        async with running_worker(EngineOptions(model_path="/m", engine="fake"), WorkerRole.DECODE):
            fault.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(live())
    await asyncio.wait({task})
    assert task.cancelled()


async def test_an_engine_that_is_closed_ends_without_a_fault(fault: asyncio.Event) -> None:
    async with running_worker(EngineOptions(model_path="/m", engine="fake"), WorkerRole.DECODE):
        pass
    await asyncio.sleep(0)


@pytest.mark.timeout(20)
def test_a_block_whose_engine_ended_under_it_ends_too(tmp_path: Path) -> None:
    class Ending:
        def __init__(self) -> None:
            self.opener = asyncio.current_task()

        async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
            assert self.opener is not None
            self.opener.cancel()
            await asyncio.Event().wait()
            raise AssertionError

    @asynccontextmanager
    async def open_engine(ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
        yield Ending()

    options, task = job_options(tmp_path / "in.jsonl", tmp_path), BlockTask(key="k", num_lines=1, begin=0)
    url = options.store("j" * 40)
    (folder := tmp_path / f"blocks-{'j' * 16}").mkdir()
    asyncio.run(BlockStore(LocalStore(folder)).put_lines(task, b'0\t{"a": 1}'))
    identity = LineIdentity(name="batch_1", created_unix_s=1)
    engine = BlockWorker(EngineAsk(engine=options.engine, identity=identity, store=url), "/v1", open_engine)
    for _ in range(2):  # the one that it computes, and the next one
        with pytest.raises(CancelledError):
            engine.compute(task)
    engine.close()


@pytest.mark.timeout(20)
def test_an_engine_that_ends_while_it_starts_is_an_error(tmp_path: Path) -> None:
    @asynccontextmanager
    async def open_engine(ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
        opener = asyncio.current_task()
        assert opener is not None
        opener.cancel()
        await asyncio.Event().wait()
        yield ScriptedEngine()

    options = job_options(tmp_path / "in.jsonl", tmp_path)
    identity = LineIdentity(name="batch_1", created_unix_s=1)
    asked = EngineAsk(engine=options.engine, identity=identity, store=options.store("j" * 40))
    with pytest.raises(DependencyDown, match="ended before it was ready"):
        BlockWorker(asked, "/v1", open_engine)


@pytest.mark.timeout(20)
def test_what_an_engine_answers_as_it_ends_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines may be answered by errors while the parts of an engine are closed."""
    closing = asyncio.Event()

    class Closing:
        async def answer(self, lines: Sequence[NumberedLine]) -> list[Row]:
            opener.pop().cancel()
            await closing.wait()
            return [(0, False, "an error of a closed part")]

    async def put_result(store: BlockStore, task: BlockTask, rows: Sequence[Row]) -> None:
        kept.append(rows)

    opener, kept = list[asyncio.Task[None]](), list[Sequence[Row]]()
    monkeypatch.setattr(BlockStore, "put_result", put_result)

    @asynccontextmanager
    async def open_engine(ask: EngineAsk, endpoint: str) -> AsyncIterator[LineEngine]:
        opener.append(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            yield Closing()
        finally:
            closing.set()
            for _ in range(9):  # while others of its parts are closed
                await asyncio.sleep(0)

    options, task = job_options(tmp_path / "in.jsonl", tmp_path), BlockTask(key="k", num_lines=1, begin=0)
    (folder := tmp_path / f"blocks-{'j' * 16}").mkdir()
    asyncio.run(BlockStore(LocalStore(folder)).put_lines(task, b'0\t{"a": 1}'))
    identity = LineIdentity(name="batch_1", created_unix_s=1)
    asked = EngineAsk(engine=options.engine, identity=identity, store=options.store("j" * 40))
    with pytest.raises(CancelledError):
        BlockWorker(asked, "/v1", open_engine).compute(task)
    assert kept == []
