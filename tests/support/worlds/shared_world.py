"""What tests of one process share, and when it ends: idle platforms take processor time from the tests after them."""

from __future__ import annotations

from contextlib import ExitStack

_STACKS: list[ExitStack] = []


def shared_stack() -> ExitStack:
    """Holds something that unit tests do not need; closed at the first of them, if not before."""
    _STACKS.append(ExitStack())
    return _STACKS[-1]


def close_shared_stacks() -> None:
    """End it all."""
    while _STACKS:
        _STACKS.pop().close()
