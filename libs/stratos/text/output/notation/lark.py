"""Parts of grammars in Lark's syntax, as llguidance reads it: literals, texts up to a mark, JSON of a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.core.requests.grammar import MAX_GRAMMAR_BYTES
from stratos.text.grammar import JSON_BLANKS
from stratos.text.output.notation.schemas import Unenforceable

ANYTHING = r"(.|\n)*"
ANY = f"/{ANYTHING}/"
_GUIDANCE = {"x-guidance": {"whitespace_pattern": JSON_BLANKS}}


def json_value(schema: Mapping[str, Any]) -> str:
    """JSON that obeys a schema."""
    return f"%json {json.dumps({**schema, **_GUIDANCE})}"


def regex(pattern: str) -> str:
    """A terminal of a regular expression."""
    written = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern)
    return "/" + written.replace("\n", r"\n").replace("\r", r"\r") + "/"


def escaped(text: str) -> str:
    """A regular expression of one text."""
    return "".join(f"\\{char}" if char in r"\.+*?()|[]{}^$#&-~" else char for char in text)


def choice(texts: Sequence[str]) -> str:
    """A regular expression of these texts."""
    return "|".join(map(escaped, texts))


def without(spellings: Sequence[str], text: str = ANY) -> str:
    """A text in which none of these is written."""
    return f"{text} & ~{regex(f'{ANYTHING}({choice(spellings)}){ANYTHING}')}" if spellings else text


@dataclass(slots=True)
class LarkWriter:
    """Writes one grammar, and no more of it than a grammar may have."""

    special: Mapping[str, int]
    """Ids of special tokens, by their spelling."""
    num_left: int = MAX_GRAMMAR_BYTES
    """Characters that may still be written."""

    def rule(self, name: str, expression: str) -> str:
        """One rule or terminal; raises ``Unenforceable`` where the grammar gets too large."""
        written = f"{name}: {expression}"
        self.num_left -= len(written) + 1
        if self.num_left < 0:
            raise Unenforceable(
                f"in the call syntax of this model the grammar takes more than {MAX_GRAMMAR_BYTES} bytes"
            )
        return written

    def literal(self, text: str) -> str:
        """A text as it must be written, special tokens by their ids."""
        spellings = choice(sorted(self.special, key=len, reverse=True))
        parts = re.split(f"({spellings})", text) if spellings else [text]
        written = (f"<[{self.special[p]}]>" if p in self.special else json.dumps(p) for p in parts if p)
        return " ".join(written)

    def up_to(self, rule: str, spelling: str, text: str = ANY, most_tokens: int | None = None) -> list[str]:
        """Text that ends with the first occurrence of a spelling, which is taken.

        Args:
            rule: its name.
            spelling: a special token where ``most_tokens`` is given.
            text: terminal of the text.
            most_tokens: of the text before the spelling, which then has to follow.
        """
        if most_tokens is not None:
            return self._bounded(rule, spelling, text, most_tokens)
        terminal = f"{rule.upper()}_TEXT"
        name = rule if spelling in self.special else f"{rule}[lazy]"
        return [
            self.rule(name, f"{terminal} {self.literal(spelling)}"),
            self.rule(terminal, without((spelling,), text)),
        ]

    def _bounded(self, rule: str, spelling: str, text: str, most_tokens: int) -> list[str]:
        assert spelling in self.special, "else its own tokens would count"
        end, terminal = self.literal(spelling), f"{rule.upper()}_TEXT"
        if not most_tokens:
            return [f"{rule}: {end}"]
        bounded = f"{rule}_words[max_tokens={most_tokens}]: {terminal}"
        return [f"{rule}: {rule}_words {end} | {end}", bounded, f"{terminal}: {without((spelling,), text)}"]
