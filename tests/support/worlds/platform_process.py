"""A platform of ``stratos up`` as a child process, for integration tests."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from stratos.cli.local.running import find_platform
from stratos.cli.local.supervisor import HEALTHY_AFTER_S, MAX_CRASHES
from stratos.cli.status import read_status, status_json
from tests.support.servers import warm_process
from tests.support.waiting import LIMIT_S, wait_until

STOP_TIMEOUT_S = 120.0
"""After that it is ended by force, and the test fails."""
ROUTER_TIMEOUT_S = 60.0
"""Of a look at a router: on a busy machine it takes longer than a person would wait."""
READY_LINE = "Ctrl-C here stops everything"
MTLS = ("--mtls", "--transport", "tls")
"""As production has it: what a process may ask another one is a table, and what is missing there shows here."""


@dataclass
class PlatformProcess:
    """One running ``stratos up`` and what it printed."""

    popen: subprocess.Popen[str] | warm_process.WarmProcess
    data_dir: Path
    lines: list[str]
    _reader: threading.Thread
    _queue: queue.Queue[str | None]
    _serving: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By process: its restarts, and when it was first seen serving after them."""
    _forgotten: dict[str, int] = field(default_factory=dict)
    """By process: restarts after which it served for so long that its supervisor has forgotten them."""

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def base_url(self) -> str:
        return re.search(r"https?://\S+", self.output)[0]

    @property
    def api_key(self) -> str:
        return re.search(r"sk-[0-9a-f]{12}-[0-9a-f]{40}-[0-9a-f]{8}", self.output)[0]

    def wait_for(self, text: str) -> None:
        """Read output until a line holds ``text``; fails when it ends before."""
        while not any(text in line for line in self.lines):
            line = self._queue.get()
            assert line is not None, f"stratos up ended without printing {text!r}:\n{self.output}"
            self.lines.append(line)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def run_dir(self) -> Path:
        return self.data_dir / "run" / self.run_id

    def shm_dir(self) -> Path:
        return Path("/dev/shm") / f"stratos-{self.run_id}"

    def facts(self) -> dict[str, Any]:
        return json.loads((self.run_dir() / "platform.json").read_text())

    def status(self) -> dict[str, Any]:
        """Output of `stratos status --json`, without starting a process for it."""
        return status_json(asyncio.run(read_status(find_platform(self.data_dir, self.run_id), ROUTER_TIMEOUT_S)))

    @property
    def run_id(self) -> str:
        """The run of this process, among those of the data directory."""
        runs = [json.loads(p.read_text()) for p in (self.data_dir / "run").glob("*/platform.json")]
        return next(run["run_id"] for run in runs if run["pid"] == self.popen.pid)

    def processes(self) -> dict[str, dict[str, Any]]:
        return {process["name"]: process for process in self.status()["processes"]}

    def is_back(self, before: Mapping[str, Any]) -> bool:
        """Whether a process that was killed since has been started again, and serves."""
        now = self.processes().get(before["name"], before)
        self._assert_goes_on(now)
        return now["state"] == "serving" and now["num_restarts"] != before["num_restarts"]

    def until_killable(self, prefix: str) -> None:
        """Before a round that kills: processes whose names begin so all serve, and come back from one more crash.

        Their supervisor leaves stopped what crashes too often in a row. It forgets crashes of what has served for a
        while, so one that has crashed that often serves for that long first.

        Raises:
            AssertionError: one stays stopped, or they do not serve within ``LIMIT_S``.
        """

        def are_killable() -> bool:
            found = [process for name, process in self.processes().items() if name.startswith(prefix)]
            return {self._is_killable(process) for process in found} == {True}

        wait_until(are_killable, f"every process {prefix}... serves, and may crash once more", timeout_s=LIMIT_S)

    def _is_killable(self, process: Mapping[str, Any]) -> bool:
        self._assert_goes_on(process)
        if process["state"] != "serving":
            return False
        name, num_restarts, now = process["name"], process["num_restarts"], monotonic()
        if self._serving.get(name, (-1, 0.0))[0] != num_restarts:
            self._serving[name] = num_restarts, now
        if now - self._serving[name][1] > HEALTHY_AFTER_S:
            self._forgotten[name] = num_restarts
        return num_restarts - self._forgotten.get(name, 0) < MAX_CRASHES

    def _assert_goes_on(self, process: Mapping[str, Any]) -> None:
        told = f"{process['name']} crashed too often in a row and stays stopped:\n{self.output}"
        assert process["state"] != "stopped", told

    def stratos(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Another ``stratos`` command against this platform."""
        done = warm_process.run("stratos.cli", *arguments, "--data-dir", str(self.data_dir), stdin=stdin)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def stop(self, signum: int = signal.SIGINT) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(signum)
        code = self.popen.wait(STOP_TIMEOUT_S)
        self._reader.join(5)
        while not self._queue.empty():
            if (line := self._queue.get()) is not None:
                self.lines.append(line)
        return code


def launch_platform(
    data_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    is_executed: bool = False,
) -> PlatformProcess:
    """Start ``stratos up``; nothing is waited for.

    Args:
        data_dir: its data directory.
        arguments: more of its command line.
        env: added to the environment of the tests.
        cwd: folder that it is started in.
        is_executed: it and its fork server are interpreters of their own, as for a user; else forks with their imports
            done, which serve the same for seconds of processor time less.
    """
    argv = ["stratos.cli", "up", "--data-dir", str(data_dir), *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    start = _execute if is_executed else warm_process.begin
    popen = start(*argv, env=environ, cwd=cwd)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in popen.stdout:
            lines.put(line)
        lines.put(None)
        popen.stdout.close()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return PlatformProcess(popen=popen, data_dir=data_dir, lines=[], _reader=reader, _queue=lines)


def _execute(*argv: str, env: Mapping[str, str], cwd: Path | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )


@contextmanager
def running_platform(
    data_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    is_executed: bool = False,
) -> Iterator[PlatformProcess]:
    """A platform that serves; ended, by force if need be, at the end."""
    platform = launch_platform(data_dir, *arguments, env=env, is_executed=is_executed)
    try:
        platform.wait_for(READY_LINE)
        yield platform
    finally:
        try:
            platform.stop()
        except subprocess.TimeoutExpired:
            platform.popen.kill()
            platform.popen.wait()
            raise


def gone(processes: list[psutil.Process]) -> bool:
    """None of the processes lives; zombies count as ended."""
    return not [p for p in processes if state_of(p) != psutil.STATUS_ZOMBIE]


def state_of(process: psutil.Process) -> str:
    """State of a process as psutil names it; a zombie if it has gone."""
    try:
        return str(process.status()) if process.is_running() else str(psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_ZOMBIE)
