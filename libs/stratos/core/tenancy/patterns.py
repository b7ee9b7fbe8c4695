"""Patterns of names of models and adapters: which names they allow, and which patterns allow no more than others."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

OLD_SIGNS = frozenset("?[]")
"""Signs beside the star that patterns of older versions may have; new ones are refused with them."""


def is_allowed(patterns: Sequence[str], name: str) -> bool:
    """Whether an ACL has the name of a model or an adapter."""
    return "*" in patterns or any(_matches(pattern, name) for pattern in patterns)


def covers(patterns: Sequence[str], others: Sequence[str]) -> bool:
    """Whether ``patterns`` allow every name that ``others`` allow; false where that is not plain to see."""
    return all(any(_covers(pattern, other) for pattern in patterns) for other in others)


def _covers(pattern: str, other: str) -> bool:
    if pattern == other:
        return True
    # A star stands for anything, other stars included: "a*" covers "a-*", as text. Other signs of patterns stand for
    # one character, which may not be one of the other pattern's.
    return OLD_SIGNS.isdisjoint(pattern) and _matches(pattern, other)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern stands for a name, without a regular expression: to compile one takes up to a millisecond."""
    if not OLD_SIGNS.isdisjoint(pattern):
        return fnmatchcase(name, pattern)
    if "*" not in pattern:
        return name == pattern
    first, *middle, last = pattern.split("*")
    end = len(name) - len(last)
    if end < len(first) or not name.startswith(first) or not name.endswith(last):
        return False
    begin = len(first)
    for part in middle:  # the leftmost place of each part leaves most room for those behind it
        found = name.find(part, begin, end)
        if found < 0:
            return False
        begin = found + len(part)
    return True
