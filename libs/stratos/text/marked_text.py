"""A text put together from others, with marks behind some of them."""

from __future__ import annotations

from collections.abc import Iterable

from stratos.core.requests.pins import CACHE_CONTROL, CacheMark


class MarkedText:
    """Texts of one message in their order.

    Args:
        between: stands between two texts.
    """

    def __init__(self, between: str = "") -> None:
        self._between = between
        self._texts: list[str] = []
        self._num_chars = 0
        self._marks: list[CacheMark] = []

    def add(self, text: str, ttl_s: int | None = None, marks: Iterable[CacheMark] = ()) -> None:
        """Append a text that ``cache_control`` marks at its end, or that has marks of its own."""
        begin = self._num_chars + (len(self._between) if self._texts else 0)
        self._texts.append(text)
        self._num_chars = begin + len(text)
        self._marks += [mark._replace(end=begin + mark.end) for mark in marks]
        self.mark(ttl_s)

    def mark(self, ttl_s: int | None, fields: tuple[str, ...] = (CACHE_CONTROL,), *, is_untimed: bool = False) -> None:
        """Mark the end of what is there; ``None`` does not."""
        if ttl_s is not None:
            self._marks.append(CacheMark(self._num_chars, ttl_s, fields, is_untimed))

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def text(self) -> str:
        """All of it."""
        return self._between.join(self._texts)

    @property
    def marks(self) -> tuple[CacheMark, ...]:
        """In the order of the text."""
        return tuple(self._marks)
