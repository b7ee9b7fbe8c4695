"""``serve`` in a process of its own: signals, faults at start, the end of a supervisor.

All but the last are forks of the template: an interpreter of their own would add nothing but its imports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from stratos.rpc.serving.heap import FULL, MIDDLE, YOUNG
from tests.support.paths import ROOT
from tests.support.servers import warm_process
from tests.support.waiting import LIMIT_S, wait_until

_PROGRAM = """
import asyncio, gc, os, sys
sys.path.insert(0, sys.argv[1])
from tests.support.fakes.rpc_echo import EchoService, EchoSettings
from stratos.rpc.serving.process import serve
from stratos.rpc.settings import load_settings

made = []

def make():
    made.append([])
    service = EchoService()
    if sys.argv[2] == "hang":
        service.drain_event = asyncio.Event()
    return service

settings = load_settings(EchoSettings)
code = serve(make, settings)
with open(os.environ["STRATOS_ECHO_ADDRESS_FILE"] + ".collector", "w") as file:
    print(gc.get_threshold(), any(one is made[0] for one in gc.get_objects()), file=file)
sys.exit(code)
"""


class Echo:
    def __init__(self, folder: Path, drain: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.address_file, program = folder / "echo.json", folder / "echo.py"
        program.write_text(_PROGRAM)
        names = {"STRATOS_ECHO_ADDRESS_FILE": str(self.address_file), **env}
        self.process = warm_process.begin(str(program), str(ROOT), drain, env={**os.environ, **names})

    def wait_serving(self) -> int:
        wait_until(lambda: self.address_file.exists() or self.process.poll() is not None, "it serves, or has ended")
        assert self.process.poll() is None, self.end()[1]
        return int(json.loads(self.address_file.read_text())["pid"])

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            log = output.read()
        return self.process.wait(), log


@pytest.fixture
def echoes() -> Iterator[list[Echo]]:
    started: list[Echo] = []
    yield started
    for echo in started:
        assert echo.process.stdout is not None
        echo.process.end()
        echo.process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, echoes: list[Echo], number: signal.Signals) -> None:
    echoes.append(echo := Echo(tmp_path, "quick", STRATOS_ECHO_LOG_FORMAT="json"))
    echo.wait_serving()
    echo.process.send_signal(number)
    code, log = echo.end()
    assert code == 0
    assert not echo.address_file.exists()
    collector = echo.address_file.with_name("echo.json.collector").read_text()
    assert collector == f"{(YOUNG, MIDDLE, FULL)} False\n", "no later pass looks at what the start made"
    assert [json.loads(line)["service"] for line in log.splitlines()] == ["echo"] * len(log.splitlines())
    assert "echo stopped" in log


def test_a_second_signal_skips_the_drain(tmp_path: Path, echoes: list[Echo]) -> None:
    echoes.append(echo := Echo(tmp_path, "hang"))
    echo.wait_serving()
    echo.process.send_signal(signal.SIGTERM)
    _wait_until_not_ready(echo)
    assert echo.process.poll() is None
    echo.process.send_signal(signal.SIGTERM)
    code, log = echo.end()
    assert code == 0
    assert "second signal" in log


def test_bad_settings_are_one_message_and_exit_code_1(tmp_path: Path, echoes: list[Echo]) -> None:
    echoes.append(echo := Echo(tmp_path, "quick", STRATOS_ECHO_LISTN="127.0.0.1:1"))
    code, log = echo.end()
    assert code == 1
    assert log == "invalid settings\n  STRATOS_ECHO_LISTN: unknown setting; did you mean STRATOS_ECHO_LISTEN?\n"


def test_a_busy_port_is_exit_code_1_without_traceback(tmp_path: Path, echoes: list[Echo]) -> None:
    echoes.append(first := Echo(tmp_path, "quick"))
    first.wait_serving()
    address = json.loads(first.address_file.read_text())["address"]
    echoes.append(second := Echo(tmp_path / "other", "quick", STRATOS_ECHO_LISTEN=address))
    code, log = second.end()
    assert code == 1
    assert "is in use; stop the process that uses it, or set STRATOS_ECHO_LISTEN" in log
    assert "Traceback" not in log
    assert len(log.splitlines()) == 2  # the settings and the message: no log lines of gRPC's own


def test_it_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    supervisor = (
        "import os, subprocess, sys; os.environ['STRATOS_PARENT_PID'] = str(os.getpid()); "
        "subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2], 'quick'])"
    )
    address_file = tmp_path / "echo.json"
    env = {**os.environ, "STRATOS_ECHO_ADDRESS_FILE": str(address_file)}
    with subprocess.Popen([sys.executable, "-c", supervisor, _PROGRAM, str(ROOT)], env=env) as parent:
        wait_until(address_file.exists, "it serves")
        child = psutil.Process(json.loads(address_file.read_text())["pid"])
        assert child.is_running()
        parent.kill()
        wait_until(lambda: not child.is_running(), "it ends")
    assert not address_file.exists()  # it left in order


def _is_ready(echo: Echo) -> bool:
    address = json.loads(echo.address_file.read_text())["metrics_address"]
    try:
        with urlopen(f"http://{address}/readyz", timeout=LIMIT_S):
            return True
    except HTTPError as error:
        error.close()
        return False


def _wait_until_not_ready(echo: Echo) -> None:
    wait_until(lambda: not _is_ready(echo), "it is ready no more")
