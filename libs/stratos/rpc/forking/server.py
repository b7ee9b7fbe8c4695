"""The fork server: imports what services need, then forks into each service that its supervisor asks for.

``python -m stratos.rpc.forking.server <descriptor of the channel> <pid of the supervisor>``

It has one thread and imports neither torch nor anything else that reads its environment when it is loaded, so that a
fork is as good as a process of its own: what a service computes with is imported by the service.  It ends with its
supervisor, and the services with it, through the kernel's parent-death signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from fcntl import F_DUPFD, fcntl
from functools import partial
from pathlib import Path

from stratos.rpc.forking.ending import end_as
from stratos.rpc.forking.wire import MAX_FDS, MAX_PACKET, Ended, Forked, ForkRequest, to_packet
from stratos.rpc.serving.parent import PARENT_PID_ENV, end_with_parent

MODULES = (
    "stratos_decode_worker",
    "stratos_router",
    "stratos_gateway",
    "stratos_lora_registry",
    "stratos_prefill_worker",
    "stratos_autoscaler",
)
"""In the order in which a platform needs them."""
_PR_SET_NAME = 15
_ABOVE_ALL_FDS = 512


@dataclass(frozen=True, slots=True)
class Child:
    """Inheritance of a fork: its request, its files, and its parent."""

    request: ForkRequest
    fds: tuple[int, ...]
    parent_pid: int


class ForkService:
    """Serves one channel until it is closed; returns in children alone."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._wakeups, self._wakes = socket.socketpair()
        self._wakeups.setblocking(False)
        self._wakes.setblocking(False)
        self._unread = list(MODULES)

    def run(self) -> Child | None:
        """The request of a child; ``None`` where the supervisor is gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the kernel wakes nothing
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._channel, selectors.EVENT_READ)
        self._selector.register(self._wakeups, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(0 if self._unread else None)]
            if self._wakeups in ready:
                self._reap()
            if self._channel in ready:
                packet, fds, _, _ = socket.recv_fds(self._channel, MAX_PACKET, MAX_FDS)
                if not packet:
                    return None
                request = ForkRequest.from_packet(packet)
                self._import(request.module)
                if (child := self._fork(request, tuple(fds))) is not None:
                    return child
            if not ready:
                self._import(self._unread[0])

    def _import(self, module: str) -> None:
        """Import what a request asks for first, and the rest while there is nothing else to do."""
        if module not in self._unread:
            return
        self._unread.remove(module)
        with contextlib.suppress(ImportError):  # said by the process that needs it
            importlib.import_module(f"{module}.__main__")
        if not self._unread:
            gc.collect()
            gc.freeze()  # so that collections in children copy no page of it

    def _fork(self, request: ForkRequest, fds: tuple[int, ...]) -> Child | None:
        parent_pid, problem = os.getpid(), ""
        try:
            pid = os.fork()
        except OSError as error:
            pid, problem = -1, str(error)
        if pid == 0:
            self._leave()
            return Child(request, fds, parent_pid)
        for fd in fds:
            os.close(fd)
        self._channel.send(to_packet(Forked(number=request.number, pid=max(pid, 0), problem=problem)))
        return None

    def _leave(self) -> None:
        """In a child: nothing of the server stays."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for end in (self._channel, self._wakeups, self._wakes):
            end.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeups.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                self._channel.send(to_packet(Ended(pid=pid, code=os.waitstatus_to_exitcode(status))))


def become(child: Child) -> int:
    """Run the service of a fork; returns its exit code."""
    os.setsid()
    log, *listeners = [fcntl(fd, F_DUPFD, _ABOVE_ALL_FDS) for fd in child.fds]
    for fd in child.fds:
        os.close(fd)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for fd, place in zip([log, log, *listeners], [1, 2, *child.request.listeners], strict=True):
        os.dup2(fd, place, inheritable=False)
    for fd in (log, *listeners):
        os.close(fd)
    for number in (0, 1, 2):
        os.set_inheritable(number, True)
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    os.environ.update(child.request.env)
    os.environ[PARENT_PID_ENV] = str(child.parent_pid)
    _name_process(child.request.name)
    sys.argv = [child.request.module]
    code: int = importlib.import_module(f"{child.request.module}.__main__").main()
    return code


def _unbuffered(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "wb", closefd=False), write_through=True)


def _name_process(name: str) -> None:
    """The kernel keeps 15 letters."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def main() -> int:
    """Serve; in a child, be the service."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    end_with_parent(int(sys.argv[2]))
    child = ForkService(channel).run()
    if child is not None:
        end_as(partial(become, child))
    return 0


if __name__ == "__main__":
    sys.exit(main())
