"""Undoes a fault in the end, also where the process that made it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_WAKE_AT_END_OF_INPUT = 'read -r line || kill -CONT "$1"'


@contextmanager
def woken_in_the_end(pid: int) -> Iterator[None]:
    """Send SIGCONT on leaving; a child does so whose input ends with this process, by SIGKILL too."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", _WAKE_AT_END_OF_INPUT, "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal for the terminal's processes is not for it
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        with suppress(BrokenPipeError):
            child.communicate(b"woken\n")


@contextmanager
def undone_in_the_end(program: str, *arguments: object, by_hand: str) -> Iterator[Callable[[int], None]]:
    """A child runs ``program`` when this is left, or when this process has ended; waits for it on leaving.

    Args:
        program: Python, of the standard library alone; it finds ``held``, a list of file descriptors, and ``family``:
            a process and all that descend from it.
        arguments: its ``sys.argv[1:]``.
        by_hand: what a person has to do where the program fails; the child writes it to stderr, too.

    Yields:
        Hands a file descriptor to the child.

    Raises:
        OSError: it could not undo everything. An error that is no ``Exception`` goes on with a note of that.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _HOLD, *map(str, arguments), program, by_hand, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        failure = f"what this fault did could not be undone: {by_hand}"
        try:
            yield lambda fd: _hand_over(ours, fd)
        except BaseException as error:
            if not _has_undone(ours, child):
                error.add_note(failure)
                if isinstance(error, Exception):
                    raise OSError(f"{failure}; and before that: {error}") from error
            raise
        if not _has_undone(ours, child):
            raise OSError(failure)


def _has_undone(ours: socket.socket, child: subprocess.Popen[bytes]) -> bool:
    ours.close()
    return child.wait() == 0


def _hand_over(ours: socket.socket, fd: int) -> None:
    socket.send_fds(ours, [b"1"], [fd])


_HOLD = """
import os, socket, sys
source, held = socket.socket(fileno=int(sys.argv.pop())), []
by_hand, program = sys.argv.pop(), sys.argv.pop()
def family(pid):
    parents, found = {}, [pid]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
        except OSError:  # it has ended
            pass
    for one in found:
        found += parents.get(one, [])
    return found
while True:
    data, fds, _, _ = socket.recv_fds(source, 1, 1)
    if not data:
        break
    held += fds
try:
    exec(program)
except BaseException as error:
    sys.exit(f"stratos chaos could not undo a fault ({error!r}): {by_hand}")
"""
