"""Patterns of names of models and adapters: which names they allow, and which patterns allow no more than others."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase


def is_allowed(patterns: Sequence[str], name: str) -> bool:
    """Whether an ACL has the name of a model or an adapter."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def covers(patterns: Sequence[str], others: Sequence[str]) -> bool:
    """Whether ``patterns`` allow every name that ``others`` allow; false where that is not plain to see."""
    return all(any(_covers(pattern, other) for pattern in patterns) for other in others)


def _covers(pattern: str, other: str) -> bool:
    if pattern == other:
        return True
    # A star stands for anything, other stars included: "a*" covers "a-*", as text. Other signs of patterns stand for
    # one character, which may not be one of the other pattern's.
    is_plain = not set(pattern) & set("?[]")
    return is_plain and fnmatchcase(other, pattern)
