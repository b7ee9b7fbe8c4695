"""Commands for Redis packed in a few calls for each argument, where the client's own way takes a dozen.

Scripts have many short arguments, and packing them was a twentieth of what a request takes a gateway.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection

_LARGE_BYTES = 16 * 1024
"""Longer values are not copied: the client sends them as they are."""


def pack_quickly(args: tuple[Any, ...]) -> bytes | None:
    """The bytes of a command; ``None`` where it has something that only the client knows how to send."""
    if type(args[0]) is not str or " " in args[0]:
        return None
    parts = [f"*{len(args)}\r\n"]
    for arg in args:
        kind = type(arg)
        if kind is int or kind is float:
            arg = repr(arg)
        elif kind is not str or not arg.isascii():  # a character is a byte
            return _packed_bytes(args)
        size = len(arg)
        if size > _LARGE_BYTES:
            return None
        parts.append(f"${size}\r\n{arg}\r\n")
    return "".join(parts).encode()


def _packed_bytes(args: tuple[Any, ...]) -> bytes | None:
    """The same where some arguments are bytes, or texts of more than ASCII."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        kind = type(arg)
        if kind is str:
            data = arg.encode("utf-8", "replace")
        elif kind is int or kind is float:
            data = repr(arg).encode()
        elif kind is bytes:
            data = arg
        else:
            return None
        size = len(data)
        if size > _LARGE_BYTES:
            return None
        parts.append(b"$%d\r\n%b\r\n" % (size, data))
    return b"".join(parts)


class _QuickPacking(AbstractConnection):
    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack a series of arguments into the Redis protocol."""
        packed = pack_quickly(args)
        return super().pack_command(*args) if packed is None else [packed]


def with_quick_packing(pool: ConnectionPool) -> ConnectionPool:
    """Have connections that the pool makes pack so."""
    own = pool.connection_class
    pool.connection_class = type(f"Quick{own.__name__}", (_QuickPacking, own), {})
    return pool
