"""The grammar of an answer whose calls are enforced: the model's own syntax around the schemas of its tools.

    required, named   [reasoning] calls
    auto              [reasoning] (text calls)* text
    auto, and content that obeys a schema of its own
                      [reasoning] (calls | content)

It is Lark's syntax as llguidance reads it.  Text before a call cannot hold the mark that begins one, so a call that is
begun is a call that obeys.  Blanks within JSON are bounded, as in every grammar here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.text.grammar import JSON_BLANKS
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallForm

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_GUIDANCE = {"x-guidance": {"whitespace_pattern": JSON_BLANKS}}
_ANY = "/(.|\\n)*/"
_TEXT = f"TEXT: {_ANY}"


def is_enforced(use: ToolUse) -> bool:
    """Whether the calls of an answer need a grammar."""
    if not use.may_call:
        return False
    return use.mode is not ToolMode.AUTO or not use.is_parallel or any(tool.is_strict for tool in use.tools)


def enforced_tools(use: ToolUse) -> Sequence[Tool]:
    """Tools that the answer may call."""
    return [tool for tool in use.tools if use.mode is not ToolMode.NAMED or tool.name == use.named]


def enforced_schemas(use: ToolUse) -> list[Mapping[str, Any]]:
    """A schema for the arguments of each of them: their own, where they must be obeyed."""
    is_free = use.mode is ToolMode.AUTO
    return [
        _ANY_OBJECT if tool.parameters is None or (is_free and not tool.is_strict) else tool.parameters
        for tool in enforced_tools(use)
    ]


def call_grammar(
    use: ToolUse, shape: OutputShape, special: Mapping[str, int], content: Mapping[str, Any] | None = None
) -> str:
    """The text of the grammar.

    Args:
        use: for which ``is_enforced``, or which has ``content`` beside it.
        shape: of the output; its syntax has a form.
        special: ids of the special tokens that the syntax is written with, by their spelling.
        content: schema of an answer without calls; ``None`` leaves it free.
    """
    assert shape.syntax is not None, "there are tools"
    assert shape.syntax.form is not None, "others are refused"
    writer = _Writer(shape.syntax.form, shape.syntax.marks, special)
    one = use.mode is ToolMode.NAMED or not use.is_parallel
    names, schemas = [tool.name for tool in enforced_tools(use)], enforced_schemas(use)
    if use.mode is not ToolMode.AUTO:
        body = ["body: calls", *writer.forced(names, one=one)]
    elif content is None:
        body = writer.free(names, one=one)
    else:
        body = ["body: calls | content", *writer.forced(names, one=one), f"content: {_json(content)}"]
    arguments = [f"args_{i}: {_json(schema)}" for i, schema in enumerate(schemas)]
    return "\n".join([*writer.start(shape), *body, *arguments, _TEXT, ""])


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_GUIDANCE})}"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes rules for one form."""

    form: CallForm
    marks: Sequence[str]
    """The first one begins the calls; others, after which a call is read as well, stand within them alone."""
    special: Mapping[str, int]

    def start(self, shape: OutputShape) -> list[str]:
        """Rules for what comes before ``body``."""
        tags = shape.reasoning
        if tags is None:
            return ["start: body"]
        thought = [*self.up_to("thought", tags.end), "gap: /[ \\n]{0,4}/"]
        if shape.is_reasoning:
            return ["start: thought gap body", *thought]
        return [f"start: body | {self.literal(tags.begin)} thought gap body", *thought]

    def forced(self, names: Sequence[str], *, one: bool) -> list[str]:
        """Nothing but calls: one, or as many as the model likes."""
        form = self.form
        more = "" if one else f"({self.literal(form.between)} call)*"
        return [
            f"calls: {self.literal(form.opening)} call {more} {self.literal(form.closing)}",
            *self.alternatives("call", names, form.before),
        ]

    def free(self, names: Sequence[str], *, one: bool) -> list[str]:
        """Text, and calls in it; after the only one nothing may come."""
        form = self.form
        head = form.opening + form.before
        mark, *others = self.marks
        assert head.startswith(mark), "a mark begins the calls"
        more = "" if one else f"({self.literal(form.between)} call)*"
        calls = f"head first {more} {self.literal(form.closing)}"
        return [
            f"body: PLAIN | {calls}" if one else f"body: ({calls})* PLAIN",
            f"PLAIN: {self.without(others)}",
            *self.up_to("head", mark, "PLAIN"),
            *self.alternatives("first", names, head.removeprefix(mark)),
            *self.alternatives("call", names, form.before),
        ]

    def without(self, spellings: Sequence[str]) -> str:
        """Any text in which none of these is written; special tokens are in no text."""
        written = [re.escape(one).replace("/", r"\/") for one in spellings if one not in self.special]
        return f"{_ANY} & ~/(.|\\n)*({'|'.join(written)})(.|\\n)*/" if written else _ANY

    def alternatives(self, rule: str, names: Sequence[str], before: str) -> list[str]:
        """A call of any of these."""
        after = self.literal(self.form.after)
        texts = [self.literal(before.replace("{name}", name)) for name in names]
        return [f"{rule}: " + " | ".join(f"{text} args_{i} {after}" for i, text in enumerate(texts))]

    def up_to(self, rule: str, spelling: str, text: str = "TEXT") -> list[str]:
        """Text that ends with the first occurrence of a spelling."""
        if spelling in self.special:
            return [f"{rule}: {text} {self.literal(spelling)}"]
        return [f"{rule}[lazy]: {text} {self.literal(spelling)}"]

    def literal(self, text: str) -> str:
        """A text as it must be written, special tokens by their ids."""
        spellings = "|".join(re.escape(s) for s in sorted(self.special, key=len, reverse=True))
        parts = re.split(f"({spellings})", text) if spellings else [text]
        written = (f"<[{self.special[p]}]>" if p in self.special else json.dumps(p) for p in parts if p)
        return " ".join(written)
