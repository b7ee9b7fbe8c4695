"""The supervisor over small real processes: starts, crashes, gives up, ends."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratos.cli.data.folder import DataDir, RunDir
from stratos.cli.local import supervisor as supervisor_module
from stratos.cli.local.process import ManagedProcess, StartFailed
from stratos.cli.local.supervisor import Supervisor
from stratos.cli.local.topology import ProcessSpec, spare_of
from stratos.common.clock import SystemClock
from stratos.common.errors import BadRequest, NotFound, Overloaded, WorkerLost
from tests.support.waiting import eventually

SERVES = """
import json, os, signal, sys, time
from pathlib import Path
path, address = Path(sys.argv[1]), os.environ.get("TEST_LISTEN", "127.0.0.1:0").replace(":0", ":1234")
staged = path.with_suffix(".tmp")
staged.write_text(json.dumps({"address": address, "metrics_address": "127.0.0.1:2", "pid": os.getpid()}))
staged.replace(path)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    time.sleep(1)
"""
STUBBORN = SERVES.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
FAILS = "import sys; print('12:00:00 ERROR   test: the disk is on fire'); sys.exit(3)"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    data = DataDir(tmp_path)
    data.prepare()
    return data.new_run()


@pytest.fixture
async def supervisor(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervisor]:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor_module, "KILL_MARGIN_S", 0.2)
    lines: list[str] = []
    supervisor = Supervisor(run, report=lines.append, clock=SystemClock(), drain_timeout_s=0.3)
    supervisor.lines = lines
    yield supervisor
    await supervisor.stop()
    run.remove()


def spec(run: RunDir, name: str, code: str = SERVES, role: str = "") -> ProcessSpec:
    argv = (sys.executable, "-c", code, str(run.address_file(name)))
    return ProcessSpec(
        name=name,
        argv=argv,
        env={"TEST_LISTEN": "127.0.0.1:0"},
        service=f"{role}_worker" if role else name.replace("-", "_"),
        role=role,
        listen_env="TEST_LISTEN",
        start_timeout_s=100,
    )


def workers_of(run: RunDir) -> list[dict[str, str]]:
    return json.loads(run.workers_file.read_text())


async def test_workers_are_told_to_the_router(supervisor: Supervisor, run: RunDir) -> None:
    assert workers_of(run) == []
    view = await supervisor.launch(spec(run, "decode-0", role="decode"))
    assert (view.state, view.address) == ("serving", "127.0.0.1:1234")
    assert workers_of(run) == [{"worker_id": "decode-0", "address": "127.0.0.1:1234", "role": "decode"}]


async def test_a_crashed_process_is_started_again_where_it_was(supervisor: Supervisor, run: RunDir) -> None:
    first = await supervisor.launch(spec(run, "router"))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: supervisor.views()[0].num_restarts == 1 and supervisor.views()[0].state == "serving")
    (again,) = supervisor.views()
    assert again.pid != first.pid
    assert again.address == first.address
    assert any("unexpectedly" in line for line in supervisor.lines)


async def test_a_process_that_always_crashes_stays_stopped(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "MAX_CRASHES", 2)
    once = f"import os, sys\nif os.path.exists('{run.path}/crashed'): sys.exit(1)\n{SERVES}"
    first = await supervisor.launch(spec(run, "router", once))
    (run.path / "crashed").touch()
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: supervisor.views()[0].state == "stopped")
    assert supervisor.views()[0].num_restarts == 2
    assert any("stays stopped" in line for line in supervisor.lines)


async def test_a_restart_that_the_machine_refuses_counts_as_a_crash(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await supervisor.launch(spec(run, "router"))
    really, refusals = asyncio.create_subprocess_exec, [OSError("no memory for a process")] * 2

    async def refuse(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await really(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: supervisor.views()[0].num_restarts == 3 and supervisor.views()[0].state == "serving")
    assert any("no memory for a process" in line for line in supervisor.lines)


async def test_a_full_disk_keeps_no_process_from_its_restart(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: the task that was to restart it ended with the write of a file, and nothing was told of it."""
    first = await supervisor.launch(spec(run, "decode-0", role="decode"))
    really, is_full = supervisor_module.write_json_atomically, asyncio.Event()

    def write(path: Path, content: Any) -> None:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        really(path, content)

    monkeypatch.setattr(supervisor_module, "write_json_atomically", write)
    monkeypatch.setattr(supervisor_module, "WRITE_AGAIN_S", 0.01)
    is_full.set()
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: supervisor.views()[0].num_restarts == 1 and supervisor.views()[0].state == "serving")
    await supervisor.launch(spec(run, "decode-1", role="decode"))
    assert [worker["worker_id"] for worker in workers_of(run)] == ["decode-0"]
    assert sum("No space left" in line for line in supervisor.lines) == 1
    is_full.clear()
    await eventually(lambda: [worker["worker_id"] for worker in workers_of(run)] == ["decode-0", "decode-1"])


async def test_a_worker_for_which_there_is_no_memory_leaves_no_trace(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*argv: str, **options: Any) -> asyncio.subprocess.Process:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", refuse)
        with pytest.raises(Overloaded, match="Cannot allocate memory"):
            await supervisor.start_worker("decode", lambda name: spec(run, name, role="decode"), limit=1)
    assert supervisor.views() == []
    view = await supervisor.start_worker("decode", lambda name: spec(run, name, role="decode"), limit=1)
    assert view.state == "serving"


async def test_a_process_that_cannot_start_tells_its_own_reason(supervisor: Supervisor, run: RunDir) -> None:
    with pytest.raises(StartFailed, match="gateway could not start: the disk is on fire") as caught:
        await supervisor.launch(spec(run, "gateway", FAILS))
    assert "the disk is on fire" in caught.value.log_tail
    assert supervisor.views() == []


async def test_one_that_never_serves_is_given_up(supervisor: Supervisor, run: RunDir) -> None:
    slow = ProcessSpec(name="slow", argv=(sys.executable, "-c", "import time; time.sleep(60)"), start_timeout_s=0.3)
    with pytest.raises(StartFailed, match="did not serve within"):
        await supervisor.launch(slow)


async def test_names_are_unique_and_workers_limited(supervisor: Supervisor, run: RunDir) -> None:
    await supervisor.launch(spec(run, "decode-0", role="decode"))
    with pytest.raises(BadRequest, match="decode-0 already"):
        await supervisor.launch(spec(run, "decode-0", role="decode"))
    view = await supervisor.start_worker("decode", lambda name: spec(run, name, role="decode"), limit=2)
    assert view.name == "decode-1"
    with pytest.raises(Overloaded, match="the limit is 2"):
        await supervisor.start_worker("decode", lambda name: spec(run, name, role="decode"), limit=2)


async def test_a_worker_that_cannot_be_asked_to_drain_is_ended_by_a_signal(supervisor: Supervisor, run: RunDir) -> None:
    await supervisor.launch(spec(run, "decode-0", role="decode"))
    await supervisor.launch(spec(run, "router"))
    with pytest.raises(NotFound):
        await supervisor.begin_drain("router")
    await supervisor.begin_drain("decode-0")
    await eventually(lambda: [v.name for v in supervisor.views()] == ["router"])
    assert workers_of(run) == []


async def test_a_stubborn_process_is_killed_in_the_end(supervisor: Supervisor, run: RunDir) -> None:
    view = await supervisor.launch(spec(run, "gateway", STUBBORN))
    await supervisor.stop()
    assert supervisor.views() == []
    with pytest.raises(ProcessLookupError):
        os.kill(view.pid, 0)


def decode_spec(run: RunDir, name: str) -> ProcessSpec:
    return spec(run, name, role="decode")


def states(supervisor: Supervisor) -> dict[str, str]:
    return {view.name: view.state for view in supervisor.views()}


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of spares that were woken; these processes have no server."""
    names: list[str] = []

    async def wake(supervisor: Supervisor, spare: ManagedProcess) -> None:
        names.append(spare.name)

    monkeypatch.setattr(Supervisor, "_wake", wake)
    return names


async def test_a_worker_that_is_wanted_is_a_spare_at_once_and_another_one_stands_by_later(
    supervisor: Supervisor, run: RunDir, woken: list[str]
) -> None:
    await supervisor.launch(decode_spec(run, "decode-0"))
    await supervisor.launch(spare_of(decode_spec(run, "decode-1")))
    assert states(supervisor) == {"decode-0": "serving", "decode-1": "standby"}
    assert [worker["worker_id"] for worker in workers_of(run)] == ["decode-0", "decode-1"]
    view = await supervisor.start_worker("decode", lambda name: decode_spec(run, name), limit=2)
    assert (view.name, view.state, woken) == ("decode-1", "serving", ["decode-1"])
    await eventually(lambda: states(supervisor).get("decode-2") == "standby")
    with pytest.raises(Overloaded, match="2 decode workers already"):
        await supervisor.start_worker("decode", lambda name: decode_spec(run, name), limit=2)


async def test_a_spare_of_another_model_takes_no_place(supervisor: Supervisor, run: RunDir, woken: list[str]) -> None:
    first = await supervisor.launch(decode_spec(run, "decode-0"))
    await supervisor.launch(spare_of(replace(decode_spec(run, "decode-1"), model_digest="another")))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: supervisor.views()[0].num_restarts == 1 and supervisor.views()[0].state == "serving")
    assert (states(supervisor)["decode-1"], woken) == ("standby", [])


async def test_a_spare_that_does_not_answer_starts_again_as_one_for_it_may_have_woken(
    supervisor: Supervisor, run: RunDir
) -> None:
    first = await supervisor.launch(decode_spec(run, "decode-0"))
    await supervisor.launch(spare_of(decode_spec(run, "decode-1")))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: [view.num_restarts for view in supervisor.views()] == [1, 1])
    await eventually(lambda: states(supervisor) == {"decode-0": "serving", "decode-1": "standby"})
    assert any("decode-1 cannot take a place" in line for line in supervisor.lines)


async def test_a_spare_that_dies_as_it_is_woken_takes_no_spare_for_itself(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wake(supervisor: Supervisor, spare: ManagedProcess) -> None:
        if spare.name == "decode-1":
            spare.kill()
            await spare.wait_ended()
            raise WorkerLost("it died")

    monkeypatch.setattr(Supervisor, "_wake", wake)
    first = await supervisor.launch(decode_spec(run, "decode-0"))
    for name in ("decode-1", "decode-2"):
        await supervisor.launch(spare_of(decode_spec(run, name)))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: [view.num_restarts for view in supervisor.views()] == [1, 1, 0])
    await eventually(
        lambda: states(supervisor) == dict.fromkeys(("decode-0", "decode-1"), "standby") | {"decode-2": "serving"}
    )


async def test_a_worker_that_comes_back_as_a_spare_is_shown_as_none_of_its_pool(
    supervisor: Supervisor, run: RunDir, woken: list[str]
) -> None:
    held = f"import os, time\nwhile os.path.exists('{run.path}/held'): time.sleep(0.01)\n{SERVES}"
    first = await supervisor.launch(spec(run, "decode-0", held, role="decode"))
    await supervisor.launch(spare_of(decode_spec(run, "decode-1")))
    (run.path / "held").touch()
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: states(supervisor) == {"decode-0": "loading", "decode-1": "serving"})
    (run.path / "held").unlink()
    await eventually(lambda: states(supervisor) == {"decode-0": "standby", "decode-1": "serving"})


async def test_a_crashed_worker_that_is_to_leave_is_not_started_again(
    supervisor: Supervisor, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = asyncio.Event()

    async def take_none(supervisor: Supervisor, wanted: ProcessSpec) -> None:
        await may_go_on.wait()

    monkeypatch.setattr(Supervisor, "_take_spare", take_none)
    first = await supervisor.launch(decode_spec(run, "decode-0"))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: states(supervisor) == {"decode-0": "starting"})
    await supervisor.begin_drain("decode-0")
    may_go_on.set()
    await eventually(lambda: supervisor.views() == [] or supervisor.views()[0].num_restarts == 1)
    assert supervisor.views() == []
