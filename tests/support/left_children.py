"""Finds children of asyncio that a test leaves: never waited for, they speak up in whichever later test runs by then.

One whose pipes are open warns when it is collected; one that was killed and not waited for has a thread that waits for
it, and that logs when the event loop is closed before it has the exit code.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from asyncio.base_subprocess import BaseSubprocessTransport
from typing import Any

_begun: list[tuple[BaseSubprocessTransport, AbstractEventLoop, str]] = []
"""Each child with its event loop and its command, until that loop is closed."""
_begin = BaseSubprocessTransport.__init__


def _remember(child: BaseSubprocessTransport, loop: Any, protocol: Any, args: Any, *rest: Any, **named: Any) -> None:
    _begun.append((child, loop, repr(args)[:500]))
    _begin(child, loop, protocol, args, *rest, **named)


def watch_children() -> None:
    """Remember every child from now on."""
    BaseSubprocessTransport.__init__ = _remember  # type: ignore[method-assign]


def children_left() -> list[str]:
    """Commands of children whose event loop has ended before them, or before their pipes; each is told once."""
    left = [command for child, loop, command in _begun if loop.is_closed() and not _is_over(child)]
    _begun[:] = [begun for begun in _begun if not (begun[1].is_closed() or _is_over(begun[0]))]
    return left


def _is_over(child: BaseSubprocessTransport) -> bool:
    """Its loop has its exit code, and its pipes are closed; one whose start failed never was a process."""
    has_begun = child.get_pid() is not None
    return child.is_closing() and (child.get_returncode() is not None or not has_begun)
