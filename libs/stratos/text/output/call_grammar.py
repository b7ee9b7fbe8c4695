"""The grammar of an answer whose calls are enforced: the model's own syntax around the schemas of its tools.

    required, named   [reasoning] calls
    auto              [reasoning] (text calls)* text
    auto, and content that obeys a schema of its own
                      [reasoning] (calls | content)
    no tools, and such content
                      [reasoning] content
    nothing but a budget of reasoning
                      [reasoning] text

It is Lark's syntax as llguidance reads it.  Text before a call cannot hold the mark that begins one, so a call that is
begun is a call that obeys.  Blanks within JSON are bounded, as in every grammar here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratos.common.errors import BadRequest
from stratos.core.requests.tools import Tool, ToolMode, ToolUse
from stratos.text.output.framed_grammar import FramedGrammar
from stratos.text.output.notation.lark import LarkWriter, json_value
from stratos.text.output.notation.schemas import Unenforceable
from stratos.text.output.parser import OutputShape
from stratos.text.output.plain_grammar import PlainGrammar

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_OF_MALFORMED = (TypeError, ValueError, AttributeError, LookupError, RecursionError)
"""What a schema meets that has a value of the wrong kind, or references without end."""


def is_enforced(use: ToolUse) -> bool:
    """Whether the calls of an answer need a grammar."""
    if not use.may_call:
        return False
    return use.mode is not ToolMode.AUTO or not use.is_parallel or any(tool.is_strict for tool in use.tools)


def enforced_tools(use: ToolUse) -> Sequence[Tool]:
    """Tools that the answer may call."""
    if not use.may_call:
        return []
    return [tool for tool in use.tools if use.mode is not ToolMode.NAMED or tool.name == use.named]


def enforced_schemas(use: ToolUse) -> list[Mapping[str, Any]]:
    """A schema for the arguments of each of them: their own, where they must be obeyed."""
    is_free = use.mode is ToolMode.AUTO
    return [
        _ANY_OBJECT if tool.parameters is None or (is_free and not tool.is_strict) else tool.parameters
        for tool in enforced_tools(use)
    ]


def bound_shape(shape: OutputShape) -> OutputShape:
    """The shape of an answer whose content obeys a schema: no call begins without a mark, as the content might."""
    syntax = shape.syntax
    if syntax is None or not syntax.starts_with:
        return shape
    form = replace(syntax.form, opening=f"{syntax.marks[0]}{syntax.form.opening}", unlike="")
    return replace(shape, syntax=replace(syntax, form=form, starts_with=""))


def end_of_reasoning(shape: OutputShape) -> str:
    """The spelling that ends it; empty where nothing is told apart as reasoning."""
    if shape.frame is not None:
        assert shape.syntax is not None, "it frames the output"
        frame = shape.syntax.form.frame
        return "" if frame is None else frame.end
    return "" if shape.reasoning is None else shape.reasoning.end


def call_grammar(
    use: ToolUse,
    shape: OutputShape,
    special: Mapping[str, int],
    content: Mapping[str, Any] | None = None,
    budget: int | None = None,
) -> str:
    """The text of the grammar.

    Args:
        use: for which ``is_enforced``, or which has ``content`` beside it.
        shape: of the output; with ``content`` a ``bound_shape``.
        special: ids of the special tokens that the syntax is written with, by their spelling.
        content: schema of an answer without calls; ``None`` leaves it free.
        budget: most tokens of reasoning, whose end is one of ``special``; ``None`` does not bound it.

    Raises:
        BadRequest: a tool's schema cannot be enforced in this syntax; ``param`` names it.
    """
    lark = LarkWriter(special)
    names = [tool.name for tool in enforced_tools(use)]
    one = use.mode is ToolMode.NAMED or not use.is_parallel
    write = PlainGrammar if shape.frame is None else FramedGrammar
    writer = write(shape, lark, names, one, budget)
    if use.mode in (ToolMode.REQUIRED, ToolMode.NAMED):
        rules = writer.forced()
    elif content is not None:
        rules = [*writer.bound(), f"content: {json_value(content)}"]
    else:
        rules = writer.free()
    return "\n".join([*rules, *_arguments(use, shape, lark), ""])


def _arguments(use: ToolUse, shape: OutputShape, lark: LarkWriter) -> list[str]:
    found = list[str]()
    for place, (tool, schema) in enumerate(zip(enforced_tools(use), enforced_schemas(use), strict=True)):
        assert shape.syntax is not None, "there are tools"
        try:
            found += shape.syntax.form.arguments(f"args_{place}", schema, lark)
        except (Unenforceable, *_OF_MALFORMED) as error:
            text = str(error) if isinstance(error, Unenforceable) else "the schema is malformed, or nested too deeply"
            raise BadRequest(text, param=f"{tool.place}.parameters", code="unsupported_parameter") from None
    return found
