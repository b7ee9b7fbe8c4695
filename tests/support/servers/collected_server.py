"""Processes of pytest-xdist that begin with all tests imported: forks of one process that has collected them.

``python -m tests.support.servers.collected_server <descriptor of the listener> <arguments of pytest>``

Each process of pytest-xdist imports every test, ours and what they import, for 10 s of processor time, and for 20
where nothing is compiled yet. A fork finds the modules, and is left with making the tests of them. What a test may
change is as if it had a process of its own: pytest begins anew in each fork.
"""

from __future__ import annotations

import gc
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from stratos.rpc.forking.ending import end_as
from tests.support.servers.module_command import module_command

CLIENT = Path(__file__).with_name("collected_client.py")


def begin(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Start the server for the tests of a run; forks of it are the processes that pytest-xdist starts by ``specs``."""
    name = f"stratos-collected-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")  # gone with its last process
        listener.listen()
        fd = listener.fileno()
        argv = [*module_command("tests.support.servers.collected_server"), str(fd), *config.args]
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[fd])
    config.add_cleanup(lambda: server.communicate())
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-S", "-E", str(CLIENT), name])


def main() -> None:
    """Collect, and then serve until the process that began this one closes its end of the standard input."""
    fd, *paths = sys.argv[1:]
    listener = socket.socket(fileno=int(fd))
    # -s: what modules take for their standard files when they are imported is open afterwards, too
    pytest.main(["--collect-only", "-qq", "-s", "-n", "0", "-p", "no:cacheprovider", *paths], plugins=[_ImportsAlone()])
    assert threading.active_count() == 1, "an import began a thread, and forks have one"
    gc.collect()
    gc.freeze()  # so that collections in forks copy no page of it
    _serve(listener)


class _ImportsAlone:
    """Makes no tests of what is imported: each fork makes its own, for seconds."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        """Forget a file that cannot be imported: pytest keeps what it had by then, which forks would take for all."""
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == str(node.path):
                del sys.modules[name]


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that began it
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    forks: list[int] = []
    while not [key for key, _ in selector.select() if key.fileobj == 0]:
        channel, _ = listener.accept()
        with channel:
            _, files, _, _ = socket.recv_fds(channel, 1, 3)
            if not files:
                continue  # its client has ended
            forks.append(os.fork())
            if not forks[-1]:
                selector.close()
                listener.close()
                end_as(partial(_become, channel, files))
            for file in files:
                os.close(file)
    listener.close()
    for pid in forks:
        os.waitpid(pid, 0)  # so that the time that they took is counted


def _become(channel: socket.socket, files: Sequence[int]) -> int:
    """What an interpreter with the arguments of execnet does: run the line that it reads."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process
    sys.argv, sys.modules["__main__"] = ["-c"], ModuleType("__main__")
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    channel.send(b"1")
    exec(eval(sys.stdin.readline()), vars(sys.modules["__main__"]))
    return 0


def _end_with(channel: socket.socket) -> NoReturn:
    """Where pytest-xdist kills what it started, it means the fork."""
    channel.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it has been killed")


if __name__ == "__main__":
    main()
