"""The template of warm processes: imports what the commands of the tests need, then forks into each that is asked for.

``python -m tests.support.servers.warm_server <descriptor of the listener>``

Every process of the tests has a channel to it. It ends with the last one, and so with the tests however they end. (A
signal at its parent's death would come as soon as the thread that began it ends.)

A fork is as good as an interpreter of its own as long as nothing here has begun a thread or used gRPC, and as long as
what it imports reads its environment when it is used and not when it is imported. Tests that are about the start of
an interpreter begin one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from fcntl import F_DUPFD, fcntl
from functools import partial
from pathlib import Path
from typing import Any, Self

from stratos.rpc.forking import client, server
from stratos.rpc.forking.ending import end_as

MAX_PACKET = 128 * 1024
MAX_FDS = 16
READY = b"1"
"""Said to each new channel: all is imported."""
_ABOVE_ALL_FDS = 512
NUMBER = struct.Struct("<i")
"""The pid, and later the exit code, in the pipe of a process."""
MODULES = (
    *(f"{module}.__main__" for module in server.MODULES),
    "stratos.cli.main",
    "stratos.cli.up",
    "stratos.cli.status",
    "stratos.cli.chat",
    "stratos.cli.local.preflight",
    "stratos.engine.runner.torch_runner",
    "openai",
)


@dataclass(frozen=True, slots=True)
class Child:
    """What a fork finds: what to run, and its files."""

    request: dict[str, Any]
    files: tuple[int, ...]


class _IsForkServer(BaseException):
    """Leaves ``stratos up`` in the fork that becomes its fork server."""


class WarmServer:
    """Serves channels until the tests are gone; returns in children alone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._channels: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._wakeups, self._wakes = socket.socketpair()
        self._wakeups.setblocking(False)
        self._wakes.setblocking(False)
        self._pipes: dict[int, int] = {}

    def run(self) -> Child | None:
        """A child; ``None`` where the tests are gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the kernel wakes nothing
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wakeups, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            if self._wakeups in ready:
                self._reap()
            if self._listener in ready:
                channel, _ = self._listener.accept()
                self._channels.add(channel)
                self._selector.register(channel, selectors.EVENT_READ)
                channel.send(READY)
            for channel in self._channels & set(ready):
                packet, fds, _, _ = socket.recv_fds(channel, MAX_PACKET, MAX_FDS)
                if not packet:
                    self._drop(channel)
                elif (child := self._fork(packet, fds)) is not None:
                    return child
            if not self._channels:
                return None

    def _fork(self, packet: bytes, fds: list[int]) -> Child | None:
        *files, pipe = fds
        if not (pid := os.fork()):
            os.close(pipe)
            self._leave()
            return Child(json.loads(packet), tuple(files))
        self._pipes[pid] = pipe
        os.write(pipe, NUMBER.pack(pid))
        for fd in files:
            os.close(fd)
        return None

    def _drop(self, channel: socket.socket) -> None:
        self._channels.remove(channel)
        self._selector.unregister(channel)
        channel.close()

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for end in (*self._channels, self._listener, self._wakeups, self._wakes):
            end.close()
        for pipe in self._pipes.values():
            os.close(pipe)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeups.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pipe = self._pipes.pop(found[0])
                with contextlib.suppress(BrokenPipeError):  # its test gave up
                    os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(found[1])))
                os.close(pipe)


class _ForkServer(client.ForkServer):
    """Forked from ``stratos up``, not executed: its imports are here."""

    @classmethod
    def begin(cls) -> Self:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor, pid = os.getpid(), os.fork()
        if not pid:
            ours.close()
            os.setsid()
            sys.argv = ["", str(its.detach()), str(supervisor)]
            raise _IsForkServer
        its.close()
        ours.setblocking(False)
        return cls(_Forked(pid), ours)  # type: ignore[arg-type]


class _Forked:
    """What a fork server's owner needs of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def become(child: Child) -> int:
    """Run the command of a fork; returns its exit code."""
    os.setsid()
    files = [fcntl(fd, F_DUPFD, _ABOVE_ALL_FDS) for fd in child.files]
    for fd in child.files:
        os.close(fd)
    for fd, place in zip(files, child.request["places"], strict=True):
        os.dup2(fd, place, inheritable=place <= 2)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    os.environ.clear()
    os.environ.update(child.request["env"])
    os.chdir(child.request["cwd"])
    _take_python_path()
    client.ForkServer = _ForkServer  # type: ignore[misc]
    program, *arguments = child.request["argv"]
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            sys.modules.pop(f"{program}.__main__", None)  # it is run and not imported
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except _IsForkServer:
        return server.main()
    return 0


def _take_python_path() -> None:
    """As an interpreter at its start: the folders of PYTHONPATH, and a ``sitecustomize`` in one of them."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[1:1] = folders
    importlib.invalidate_caches()
    if any((Path(folder) / "sitecustomize.py").exists() for folder in folders):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _unbuffered(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "wb", closefd=False), encoding="utf-8", write_through=True)


def main() -> None:
    """Serve; in a child, be the command."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.enable()
    gc.freeze()  # so that collections in children copy no page of it
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "an import began a thread, and forks have one"
    child = WarmServer(listener).run()
    if child is not None:
        end_as(partial(become, child))


if __name__ == "__main__":
    main()
