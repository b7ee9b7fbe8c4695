"""A policy's words and patterns as one matcher of linear time.

A hit ends at the first character at which any rule matches, has at most ``max_chars`` characters, and begins as early
as it can: of a text that arrives in pieces the same hit is found, because nothing after its end (but one character, for
the end of a word) says whether it is one.  RE2 does the matching: it has no backtracking, so no text takes long.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from stratos.common.errors import BadRequest
from stratos.core.tenancy.content import ContentPolicy
from stratos.text.filtering.shipped_rules import SHIPPED_GROUPS

MAX_PROGRAM_BYTES = 8 * 1024 * 1024
"""Of a compiled rule, and of the states that it may keep."""
_SEGMENT = 2048
"""Characters that are looked through at once: a hit is searched for its exact place within them."""
_SAMPLES = ("", "a b.1\n")
_MAX_GAP = 8
"""Blanks between the words of a phrase."""
_EDGE = r"[^\pL\pN_]"


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a text breaks a rule; characters from its beginning."""

    begin: int
    end: int
    rule: str


class Rules:
    """Words and patterns by rule id; shared by all requests of a policy.

    Args:
        words: found between edges of words, in any case.
        patterns: regular expressions of RE2.
        max_chars: longest match of a pattern.

    Raises:
        BadRequest: a pattern is not valid, matches nothing at all, or is too large.
    """

    def __init__(self, words: Mapping[str, Sequence[str]], patterns: Mapping[str, str], max_chars: int) -> None:
        sources = {rule: _words_pattern(found) for rule, found in words.items() if found}
        longest = max((_longest(word) for found in words.values() for word in found), default=0)
        for rule, pattern in patterns.items():
            if rule in sources:
                raise _refused(rule, "there are words of this id")
            sources[rule] = pattern
        self._rules = {rule: _compile(rule, source) for rule, source in sources.items()}
        # Each rule was compiled alone before: parentheses cannot end early in the whole.
        self._any = _compile("all rules", "|".join(f"(?:{source})" for source in sources.values())) if sources else None
        self.max_chars = max(max_chars if patterns else 0, longest + 2)
        """Of a hit; a word's has the characters at both of its edges."""

    @classmethod
    def of(cls, policy: ContentPolicy) -> Rules:
        """Compile the rules of a policy, with the shipped groups that it names; raises like the constructor."""
        words, patterns = dict(policy.words), dict(policy.patterns)
        for name in policy.shipped:
            if name not in SHIPPED_GROUPS:
                raise BadRequest(f"there is no shipped group {name[:64]!r}", param="shipped")
            group = SHIPPED_GROUPS[name]
            words |= {f"{name}.{rule}": found for rule, found in group.words.items()}
            patterns |= {f"{name}.{rule}": pattern for rule, pattern in group.patterns.items()}
        return cls(words, patterns, policy.window_chars)

    @property
    def is_empty(self) -> bool:
        """There is nothing to find."""
        return self._any is None

    @property
    def names(self) -> tuple[str, ...]:
        """All rule ids."""
        return tuple(self._rules)

    def rules_hit(self, text: str) -> frozenset[str]:
        """Rules with a hit in a whole text, each looked for by itself: hits may lie within one another."""
        if self.first_hit(text) is None:
            return frozenset()
        return frozenset(rule for rule in self._rules if self._alone(rule).first_hit(text) is not None)

    def _alone(self, rule: str) -> Rules:
        """The same matcher with one rule."""
        alone, pattern = copy.copy(self), self._rules[rule]
        alone._rules, alone._any = {rule: pattern}, pattern
        return alone

    def first_hit(self, text: str, checked: int = 0, *, is_whole: bool = True) -> Hit | None:
        """The hit that ends first, of those that end after ``checked``.

        Args:
            text: from its beginning.
            checked: no hit ends up to here; an earlier call has said so.
            is_whole: nothing follows; else the last character only says what may follow a hit.
        """
        end = len(text) if is_whole else len(text) - 1
        while self._any is not None and checked < end:
            part = min(end, checked + _SEGMENT)
            if (hit := self._hit_in(text, checked, part)) is not None:
                return hit
            checked = part
        return None

    def _hit_in(self, text: str, checked: int, end: int) -> Hit | None:
        low = max(0, checked - self.max_chars)
        begin, stop = max(0, low - 1), min(len(text), end + 1)
        view = _View(text[begin:stop], begin)
        while view.matches(self._any, low, end):
            first = self._first_end(view, low, checked, end)
            if view.matches(self._any, max(low, first - self.max_chars), first):
                return self._named(view, max(low, first - self.max_chars), first)
            # What ends here is too long, and so is everything that begins as early and ends later.
            low, checked = max(low + 1, first - self.max_chars + 1), first
        return None

    def _first_end(self, view: _View, low: int, checked: int, end: int) -> int:
        """The least end of a match that begins at ``low`` or later; one up to ``end`` is known."""
        least, most = max(checked, low) + 1, end
        while least < most:
            middle = (least + most) // 2
            if view.matches(self._any, low, middle):
                most = middle
            else:
                least = middle + 1
        return most

    def _named(self, view: _View, low: int, end: int) -> Hit:
        found = {rule: view.begin_of(pattern, low, end) for rule, pattern in self._rules.items()}
        begins = {rule: begin for rule, begin in found.items() if begin is not None}
        rule = min(begins, key=lambda name: (begins[name], name))
        return Hit(begins[rule], end, rule)


class _View:
    """A part of a text, by positions of the whole; matches see one character at either side of where they may lie."""

    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self._offset = offset

    def matches(self, pattern: Any, low: int, end: int) -> bool:
        return self.begin_of(pattern, low, end) is not None

    def begin_of(self, pattern: Any, low: int, end: int) -> int | None:
        match = pattern.search(self._text, low - self._offset, end - self._offset)
        return None if match is None else match.start() + self._offset


def _longest(phrase: str) -> int:
    parts = phrase.split()
    return sum(map(len, parts)) + _MAX_GAP * (len(parts) - 1)


def _words_pattern(words: Sequence[str]) -> str:
    phrases = sorted({rf"\s{{1,{_MAX_GAP}}}".join(map(re2.escape, word.split())) for word in words if word.split()})
    return rf"(?i)(?:^|{_EDGE})(?:{'|'.join(phrases)})(?:{_EDGE}|$)"


def _compile(rule: str, source: str) -> Any:
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = MAX_PROGRAM_BYTES, False, True
    try:
        pattern = re2.compile(source, options)
    except re2.error as error:
        why = error.args[0]
        raise _refused(rule, why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from None
    if any(match.start() == match.end() for sample in _SAMPLES for match in pattern.finditer(sample)):
        raise _refused(rule, "it matches an empty text")
    return pattern


def _refused(rule: str, why: str) -> BadRequest:
    return BadRequest(f"rule {rule[:64]!r}: {why[:200]}", param="patterns", code="invalid_content_policy")
