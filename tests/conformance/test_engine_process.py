"""What only an engine in a process of its own can do: crash, be killed, hang, outlive or leave files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stratos.common.errors import InvalidCheckpoint, WorkerLost
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob, RequestKey
from stratos.engine.settings import RunnerConfig
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.transfer import PortEvent, RingBroken
from stratos.worker.engine_client import process as process_engine
from stratos.worker.engine_client.base import STOPPED
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.settings import WorkerSettings
from tests.support.kv.port_ends import STAGING, move_kv, read_kv
from tests.support.servers import warm_process
from tests.support.waiting import eventually
from tests.support.worlds.engine_clients import (
    ENGINE,
    EXIT_TOKEN,
    GARBAGE_TOKEN,
    HANG_UP_TOKEN,
    STRANGE_TOKEN,
    Outputs,
    ended,
    events,
    expected,
    fork,
    kv_directory,
    make_client,
    make_request,
)

FAKE: dict[str, Any] = {"overlap": True}


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    clients = []

    async def open_client(fake: dict[str, Any] | None = None, **options: Any) -> tuple[ProcessEngine, Outputs]:
        client = make_client("process", FAKE | (fake or {}), {"max_num_batched_tokens": 4096}, **options)
        assert isinstance(client, ProcessEngine)
        await client.start()
        clients.append(client)
        return client, Outputs(client)

    yield open_client
    for client in clients:
        await client.close()


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return False


async def test_a_crash_is_told_with_its_exit_code_and_ends_open_calls(start: Callable[..., Any]) -> None:
    client, outputs = await start()
    await client.add(make_request([1, 2, 3], "good"))
    await eventually(lambda: ended(outputs))
    with contextlib.suppress(WorkerLost):  # the process may be gone before it could answer
        await client.add(make_request([EXIT_TOKEN], "bad"))
    with pytest.raises(RuntimeError, match="exit code 7"):
        await client.wait_failed()
    with pytest.raises(WorkerLost):
        await client.match((1, 2), "", b"")
    assert outputs.tokens["good", 0] == expected([1, 2, 3])


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (GARBAGE_TOKEN, "sent an undecodable message"),
        (HANG_UP_TOKEN, "killed by SIGKILL"),
        (STRANGE_TOKEN, "not part of the engine's messages"),
    ],
)
async def test_an_engine_that_sends_no_message_or_hangs_up_is_ended(
    start: Callable[..., Any], token: int, reason: str
) -> None:
    client, outputs = await start()
    await client.add(make_request([1, 2, 3], "good", max_tokens=4000))
    await eventually(lambda: outputs.tokens)
    with contextlib.suppress(WorkerLost):
        await client.add(make_request([token], "bad"))
    with pytest.raises(RuntimeError, match=reason):
        await client.wait_failed()
    assert not is_running(client.pid)
    with pytest.raises(WorkerLost):
        await client.match((1, 2), "", b"")
    assert outputs.tokens["good", 0] == expected([1, 2, 3], 4000)[: len(outputs.tokens["good", 0])]


async def test_a_kill_is_told_by_the_name_of_the_signal(start: Callable[..., Any]) -> None:
    client, _ = await start({"step_s": 30.0})
    await client.add(make_request([1, 2, 3]))
    await eventually(lambda: client.status().is_computing)
    calls = [asyncio.create_task(client.reserve(make_request([1, 2], f"r{i}"))) for i in range(3)]  # wait for the step
    await asyncio.sleep(0)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed by SIGKILL"):
        await client.wait_failed()
    for call in calls:
        with pytest.raises(WorkerLost):
            await call


async def test_a_hang_shows_as_a_step_counter_that_stands_still(start: Callable[..., Any]) -> None:
    client, outputs = await start({"step_s": 0.005})
    await client.add(make_request([1, 2, 3], max_tokens=4000))
    await eventually(lambda: outputs.tokens)
    os.kill(client.pid, signal.SIGSTOP)
    was = -1
    while client.status().step != was:  # what is on its way still arrives
        was = client.status().step
        await asyncio.sleep(0.1)
    assert client.status().is_computing
    os.kill(client.pid, signal.SIGCONT)
    await eventually(lambda: client.status().step > was)
    client.abort(RequestKey("r", 0))
    await eventually(lambda: not client.status().is_computing)
    os.kill(client.pid, signal.SIGSTOP)
    waiting = asyncio.create_task(client.match((1, 2), "", b""))
    await eventually(lambda: client.status().is_computing)  # nothing runs, yet a call waits: the hang must show
    os.kill(client.pid, signal.SIGCONT)
    assert await waiting == 0


async def test_an_order_whose_caller_gave_up_leaves_nothing(start: Callable[..., Any]) -> None:
    """The engine hangs while a pair is opened and a frame is packed; both callers are gone when it goes on."""
    client, _ = await start()
    os.kill(client.pid, signal.SIGSTOP)
    staging = StagingSlots("shm", "inc-d", STAGING, client.data_port)
    calls = [
        asyncio.create_task(staging.open_pair("inc-p")),
        asyncio.create_task(client.data_port.gather("shm", "unknown", KvRange(0, 1, 0, 1))),
    ]
    await eventually(lambda: client.num_open_calls == 2)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    client.data_port.drop_leg("unknown")
    os.kill(client.pid, signal.SIGCONT)
    opened = await client.data_port.open_ring("shm", "inc-p>inc-d#2")
    names = [path.name for path in kv_directory().iterdir()]
    assert names == [opened.address], "the first pair's file is gone"
    client.data_port.end_ring("inc-p>inc-d#2")
    await client.match((1, 2), "", b"")
    assert not list(kv_directory().iterdir())


async def test_frames_of_the_port_wait_for_no_step(start: Callable[..., Any]) -> None:
    client, outputs = await start({"step_s": 0.0})
    tokens = tuple(range(100))
    await client.add_prefill(PrefillJob(leg="leg", token_ids=tokens))
    await eventually(lambda: events(outputs))
    await client.grant("leg")
    await eventually(lambda: len(events(outputs)) == 2)
    slow, _ = await start({"step_s": 30.0})
    reserving = make_request(range(101))
    assert await slow.reserve(reserving) is not None
    await slow.add(make_request([1, 2, 3], "slow"))
    await eventually(lambda: slow.status().is_computing)
    await move_kv(client.data_port, slow.data_port, "leg", reserving.key, KvRange(0, 100, 0, 1))
    os.kill(slow.pid, signal.SIGKILL)


async def test_nothing_is_left_behind(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def resources() -> tuple[int, int]:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), len(list(kv_directory().iterdir()))

    await _life(None)  # the channel of the template stays
    before = resources()
    assert not is_running(await _life(None, is_executed=True))
    monkeypatch.setattr(process_engine, "CLOSE_TIMEOUT_S", 0.3)
    for end in (signal.SIGKILL, signal.SIGSTOP):
        assert not is_running(await _life(end))
    assert resources() == before


async def _life(end: signal.Signals | None, is_executed: bool = False) -> int:
    client = make_client("process", FAKE, {}, is_executed=is_executed)
    assert isinstance(client, ProcessEngine)
    await client.start()
    outputs = Outputs(client)
    await client.add_prefill(PrefillJob(leg="leg", token_ids=(1, 2, 3)))
    await eventually(lambda: events(outputs))
    await client.grant("leg")
    await eventually(lambda: len(events(outputs)) == 2)
    port, pair = client.data_port, "inc-p>inc-d#1"
    payload = await read_kv(port, kv_directory(), "leg", KvRange(0, 3, 0, 1))
    opened = await port.open_ring("shm", pair)
    if end is not None:
        (kv_directory() / opened.address).unlink()  # as a sender does that maps it; else it waits for the next start
    broken: list[PortEvent] = []
    port.subscribe(broken.append)
    if end is not None:
        os.kill(client.pid, end)
    if end is signal.SIGKILL:
        with pytest.raises(RuntimeError, match="SIGKILL"):
            await client.wait_failed()
    await client.close()
    assert len(payload) == 24
    assert broken == [RingBroken(pair="", why=STOPPED)], "all pairs end with the engine's process"
    with pytest.raises(WorkerLost):
        await port.gather("shm", "leg", KvRange(0, 3, 0, 1))
    return client.pid


WORKER = """
import asyncio
from stratos.worker.engine_client.process import ProcessEngine
from stratos.worker.settings import WorkerSettings

async def main():
    client = ProcessEngine(WorkerSettings(engine="fake").model_dump_json().encode())
    await client.start()
    print(client.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
"""Its engine is an interpreter of its own, as a user's."""


async def test_the_engine_ends_with_its_worker(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    worker = warm_process.begin(str(program))
    assert worker.stdout is not None
    try:
        pid = int(await asyncio.to_thread(worker.stdout.readline))
        assert is_running(pid)
    finally:
        worker.end()
        worker.stdout.close()
    await eventually(lambda: not is_running(pid))


async def test_an_engine_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    settings = WorkerSettings(engine="torch", runner=RunnerConfig(model_path=tmp_path / "nothing"))
    client = ProcessEngine(settings.model_dump_json().encode(), command=(ENGINE,), launch=fork)
    with pytest.raises(InvalidCheckpoint, match="nothing"):
        await client.start()
    await client.close()


async def test_a_program_that_is_no_engine_is_told(start: Callable[..., Any]) -> None:
    client = ProcessEngine(b"{}", command=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(RuntimeError, match="exit code 3"):
        await client.start()
