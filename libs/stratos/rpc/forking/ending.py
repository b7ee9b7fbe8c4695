"""The end of a fork: all that an interpreter does at its end, except taking itself apart.

A fork shares the memory of the modules that were imported before it. An interpreter that ends counts down every
object, which copies all of that memory: a third of a second of processor time per process, for nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def end_as(run: Callable[[], int]) -> NoReturn:
    """Run a program, and end the process with its exit code; tracebacks and ``sys.exit`` are as without this.

    Threads that are no daemons are waited for, then what was registered with ``atexit`` runs.
    """
    code = _run(run)
    threading._shutdown()  # type: ignore[attr-defined] # as multiprocessing ends its forks
    atexit._run_exitfuncs()
    _flush()
    os._exit(code & 0xFF)


def _run(run: Callable[[], int]) -> int:
    try:
        return run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader is gone, or it is closed
            continue
