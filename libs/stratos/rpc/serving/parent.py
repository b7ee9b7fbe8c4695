"""A service that a supervisor started ends with it, also when the supervisor is SIGKILLed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_PID_ENV = "STRATOS_PARENT_PID"
"""Process id of the supervisor, or of its fork server, in the environment of a service."""
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when the parent's thread that started us ends; exit if it is gone already.

    The supervisor must start services from a thread that lives as long as itself (its main thread).
    Only Linux has this; elsewhere it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit("the supervisor that started this process is gone")
