"""Processes of the tests that begin with their imports done: forks of one template (see ``warm_server``).

An interpreter that imports a service takes seconds of processor time, a fork takes milliseconds. The command is the
one that a user gives; what it does is real, apart from the start of its interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import functools
import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.support.servers.module_command import module_command
from tests.support.servers.warm_server import MAX_PACKET, NUMBER, READY

INHERITED = (0, 1, 2)
"""The standard files of the tests."""
ENVIRONMENT = dict(os.environ)
"""Before any test changed it: what the template's imports find, OMP_NUM_THREADS apart."""
_LOCK = threading.Lock()


class WarmProcess:
    """One command; like ``subprocess.Popen``, as far as tests need it. Its output is text."""

    def __init__(self, pipe: int, output: IO[str] | None) -> None:
        self._pipe = pipe
        self.stdout = output
        self.pid = self._number()
        self.returncode: int | None = None

    @property
    def has_ended(self) -> bool:
        """Looks and takes no news: its exit code stays for the next reader."""
        return self.returncode is not None or bool(select.select([self._pipe], [], [], 0)[0])

    def poll(self) -> int | None:
        """Its exit code, below 0 where a signal ended it; ``None`` while it runs."""
        if self.returncode is None and self.has_ended:
            self.returncode = self._number()
            os.close(self._pipe)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None and not select.select([self._pipe], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        code = self.poll()
        assert code is not None, "something came"
        return code

    def send_signal(self, signum: int) -> None:
        """None is sent to a process that is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """It is gone when this returns."""
        self.kill()
        self.wait(10)

    async def ended(self) -> int:
        """As ``wait``, for one task."""
        if self.poll() is None:
            loop = asyncio.get_running_loop()
            news = loop.create_future()
            loop.add_reader(self._pipe, lambda: news.done() or news.set_result(None))
            try:
                await news
            finally:
                loop.remove_reader(self._pipe)
        return self.wait()

    def _number(self) -> int:
        packet = os.read(self._pipe, NUMBER.size)
        assert packet, "the template of warm processes is gone"
        return int(NUMBER.unpack(packet)[0])


class WarmChild:
    """One command, like ``asyncio.subprocess.Process``; belongs to the running event loop.

    One task alone reads the pipe: another reader would take the news that it waits for.
    """

    def __init__(self, process: WarmProcess) -> None:
        self._process = process
        self._ended = asyncio.ensure_future(process.ended())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send_signal(self, signum: int) -> None:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Any number of tasks may wait."""
        return await asyncio.shield(self._ended)


def begin(
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    files: tuple[int, ...] | None = None,
    places: Sequence[int] = (),
) -> WarmProcess:
    """Start ``python -m argv``, or a program where its path ends with ".py", in a session of its own.

    Args:
        argv: module or program, and its arguments.
        env: all of its environment; default: that of the tests.
        cwd: its folder; default: that of the tests.
        files: descriptors of its standard files; default: nothing to read, and one pipe for both kinds of output.
            More may follow.
        places: numbers under which it finds those that follow.
    """
    request = {
        "argv": argv,
        "places": [0, 1, 2, *places],
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
    }
    packet = json.dumps(request).encode()
    assert len(packet) <= MAX_PACKET, "too large an environment"
    news, tells = os.pipe()
    output: IO[str] | None = None
    with ExitStack() as stack:
        stack.callback(os.close, tells)
        if files is None:
            reads, writes = os.pipe()
            stack.callback(os.close, writes)
            output = os.fdopen(reads, encoding="utf-8")
            files = (stack.enter_context(Path(os.devnull).open("rb")).fileno(), writes, writes)
        with _LOCK:
            socket.send_fds(_template(), [packet], [*files, tells])
    return WarmProcess(news, output)


def run(
    *argv: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with captured text; raises ``subprocess.TimeoutExpired``."""
    with TemporaryFile("w+", encoding="utf-8") as words, TemporaryFile() as out, TemporaryFile() as errors:
        words.write(stdin)
        words.seek(0)
        process = begin(*argv, env=env, files=(words.fileno(), out.fileno(), errors.fileno()))
        try:
            code = process.wait(timeout_s)
        finally:
            process.end()
        texts = [file.seek(0) or file.read().decode() for file in (out, errors)]
    return subprocess.CompletedProcess(argv, code, *texts)


def prepare() -> None:
    """Have the template's imports done; the first process of all would wait for them."""
    with _LOCK:
        _template()


@functools.cache
def _template() -> socket.socket:
    """Channel of the template that forks for this process, and for those of pytest-xdist beside it."""
    name = f"\0stratos-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"  # gone with its last socket
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while channel.connect_ex(name):
        _begin_template(name)
    atexit.register(channel.close)
    left = signal.setitimer(signal.ITIMER_REAL, 0)  # of the test: its limit is not for imports
    try:
        assert channel.recv(len(READY)), "the template of warm processes ended"
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
    return channel


def _begin_template(name: str) -> None:
    """Begin the template, unless another process has taken its name to do so.

    Not by ``subprocess``, which wants to wait for it: it ends with the last process of the tests.
    """
    argv = module_command("tests.support.servers.warm_server")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        if _is_taken(listener, name):
            return
        listener.listen()
        fd = listener.fileno()
        os.posix_spawn(
            argv[0],
            [*argv, str(fd)],
            {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, fd, fd)],
            setsid=True,
        )


def _is_taken(listener: socket.socket, name: str) -> bool:
    try:
        listener.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False
