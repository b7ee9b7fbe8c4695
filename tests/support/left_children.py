"""Finds children of asyncio that a test leaves: never waited for, they warn in whichever later test collects them."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from asyncio.base_subprocess import BaseSubprocessTransport
from typing import Any
from weakref import WeakKeyDictionary

_begun: WeakKeyDictionary[BaseSubprocessTransport, tuple[AbstractEventLoop, str]] = WeakKeyDictionary()
"""The event loop and the command of each child that is still referred to."""
_begin = BaseSubprocessTransport.__init__


def _remember(child: BaseSubprocessTransport, loop: Any, protocol: Any, args: Any, *rest: Any, **named: Any) -> None:
    _begun[child] = loop, repr(args)[:500]
    _begin(child, loop, protocol, args, *rest, **named)


def watch_children() -> None:
    """Remember every child from now on."""
    BaseSubprocessTransport.__init__ = _remember  # type: ignore[method-assign]


def children_left() -> list[str]:
    """Commands of children whose event loop has ended before them, or before their pipes; each is told once."""
    ended = [child for child, (loop, _) in _begun.items() if loop.is_closed()]
    told = [(_begun.pop(child)[1], child.is_closing()) for child in ended]
    return [command for command, is_over in told if not is_over]
