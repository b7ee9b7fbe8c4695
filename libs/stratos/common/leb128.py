"""Whole numbers in as few bytes as they need: seven bits each, the lowest first (LEB128)."""

from __future__ import annotations

from collections.abc import Iterator


def add_number(buffer: bytearray, number: int) -> None:
    """Append a number, which is not negative."""
    while number > 0x7F:
        buffer.append(number & 0x7F | 0x80)
        number >>= 7
    buffer.append(number)


def read_number(numbers: Iterator[int], byte: int) -> int:
    """A number whose first byte was read; raises ``StopIteration`` where the others are missing."""
    number, shift = byte & 0x7F, 7
    while byte > 0x7F:
        byte = next(numbers)
        number |= (byte & 0x7F) << shift
        shift += 7
    return number
