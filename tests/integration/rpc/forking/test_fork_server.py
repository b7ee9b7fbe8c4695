"""The fork server over a small package: what a fork finds, how its end is heard, what ends with what."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from stratos.rpc.forking.client import ForkedProcess, ForkServer, ForkServerGone
from tests.support.waiting import eventually, wait_until

SERVICE = """
import atexit, json, os, signal, socket, sys, threading
from pathlib import Path
from stratos.rpc.serving.parent import PARENT_PID_ENV, end_with_parent

def main():
    end_with_parent(int(os.environ[PARENT_PID_ENV]))
    task = os.environ["TASK"]
    if task == "exit":
        return 7
    if task == "raise":
        raise RuntimeError("broken")
    if task == "leave":
        sys.exit("a reason")
    if task == "last words":
        is_over = threading.Event()
        threading.Thread(target=lambda: (is_over.wait(), print("thread"))).start()
        atexit.register(print, "atexit")
        threading.Timer(0.01, is_over.set).start()
        sys.exit(9)
    found = {
        "argv": sys.argv, "pid": os.getpid(), "session": os.getsid(0), "comm": Path("/proc/self/comm").read_text(),
        "inherited": os.environ.get("INHERITED"), "threads": threading.active_count(),
        "handlers": [int(signal.getsignal(n)) for n in (signal.SIGCHLD, signal.SIGTERM)],
    }
    if task == "listen":
        found["port"] = socket.socket(fileno=int(os.environ["LISTENER"])).getsockname()[1]
    print(json.dumps(found))
    signal.pause()
"""

in_one_loop = pytest.mark.asyncio(loop_scope="module")
"""That of the server."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("packages") / "forked_sample"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(SERVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder.parent))
        patch.setenv("INHERITED", "yes")
        yield folder.name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(package: str) -> AsyncIterator[ForkServer]:
    """One for all tests: it imports every service, for a second of processor time."""
    server = ForkServer.begin()
    yield server
    server.end()


class Forks:
    """Forks of the sample package, with one log."""

    def __init__(self, server: ForkServer, package: str, log_path: Path) -> None:
        self.server, self.package, self.log_path = server, package, log_path

    async def fork(self, task: str, listeners: tuple[int, ...] = (), **env: str) -> ForkedProcess:
        with self.log_path.open("ab") as log:
            return await self.server.fork(
                self.package, name=f"sample-{task}", env={"TASK": task, **env}, log=log.fileno(), listeners=listeners
            )

    async def said(self) -> dict[str, object]:
        await eventually(lambda: self.log_path.read_text().endswith("\n"), "a line in the log")
        return dict(json.loads(self.log_path.read_text().splitlines()[-1]))


@pytest.fixture
def forks(server: ForkServer, package: str, tmp_path: Path) -> Forks:
    return Forks(server, package, tmp_path / "log")


@in_one_loop
async def test_a_fork_is_a_process_of_its_own(forks: Forks) -> None:
    process = await forks.fork("wait")
    said = await forks.said()
    assert said == {
        "argv": [forks.package], "pid": process.pid, "session": process.pid, "comm": "sample-wait\n",
        "inherited": "yes", "threads": 1, "handlers": [0, 0],
    }  # fmt: skip
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # nothing, as there is no process


@in_one_loop
async def test_a_listener_is_found_under_its_number(forks: Forks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await forks.fork("listen", (listener.fileno(),), LISTENER=str(listener.fileno()))
        assert (await forks.said())["port"] == listener.getsockname()[1]


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [
        ("exit", 7, ""),
        ("raise", 1, "RuntimeError: broken"),
        ("leave", 1, "a reason"),
        ("last words", 9, "thread\natexit"),
    ],
)
@in_one_loop
async def test_exit_codes_and_words_are_those_of_the_service(forks: Forks, task: str, code: int, words: str) -> None:
    process = await forks.fork(task)
    assert await process.wait() == code
    assert forks.log_path.read_text().strip().endswith(words)
    assert ("Traceback" in forks.log_path.read_text()) is (task == "raise")


@in_one_loop
async def test_what_cannot_be_forked_is_said_and_harms_no_other(forks: Forks) -> None:
    with pytest.raises(ForkServerGone, match="too large an environment"):
        await forks.fork("wait", HUGE="x" * 200_000)
    assert await (await forks.fork("exit")).wait() == 7


@in_one_loop
async def test_a_fork_whose_caller_gave_up_is_gone_once_the_server_has_settled(forks: Forks) -> None:
    asked = asyncio.create_task(forks.fork("wait"))
    await asyncio.sleep(0)  # until it waits for the answer
    asked.cancel()
    await forks.server.settle()
    assert asked.cancelled()
    assert not [child for child in psutil.Process().children(recursive=True) if child.name() == "sample-wait"]
    assert await (await forks.fork("exit")).wait() == 7


@in_one_loop
async def test_processes_end_with_their_server_and_no_other_is_forked(forks: Forks) -> None:
    # The last one of the shared server: it ends it.
    process = await forks.fork("wait")
    await forks.said()
    os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
    assert await process.wait() < 0
    await eventually(lambda: not psutil.pid_exists(process.pid), "the end of the process")
    with pytest.raises(ForkServerGone):
        await forks.fork("wait")


def test_all_end_with_their_supervisor(package: str, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from stratos.rpc.forking.client import ForkServer; server = ForkServer.begin()\n"
        f"made = server.fork({package!r}, name='s', env={{'TASK': 'wait'}}, log=sys.stdout.fileno())\n"
        "async def main():\n    await made\n    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = json.loads(supervisor.stdout.readline())["pid"]
        server_pid = psutil.Process(pid).ppid()
        supervisor.kill()
    wait_until(lambda: not psutil.pid_exists(pid) and not psutil.pid_exists(server_pid), what="the end of both")
