"""Run a command that ends when its parent ends, even when the parent is killed.

    python -m stratos.cli.local.guard PARENT_PID -- COMMAND [ARGUMENT ...]

The kernel's promise to send a signal at the parent's death survives exec.  Used for the embedded Redis, which
knows nothing of its parent; our own services ask for the same in ``stratos.rpc.serving.parent``.  This file
repeats those few lines because importing ``stratos.rpc`` takes longer than Redis takes to start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends; exit if it is gone already. Only Linux has this."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit("the process that started this one is gone")


def main(argv: list[str]) -> int:
    """Guard and exec; returns only when the arguments are wrong."""
    if len(argv) < 3 or argv[1] != "--" or not argv[0].isdigit():
        print("usage: python -m stratos.cli.local.guard PARENT_PID -- COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    end_with_parent(int(argv[0]))
    os.execvp(argv[2], argv[2:])  # noqa: S606 - the command is the supervisor's own, no shell is involved


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
