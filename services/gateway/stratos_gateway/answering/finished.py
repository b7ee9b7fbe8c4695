"""Finished answers against the schemas that they had to obey: what does not is an error, whichever source wrote it.

A worker's grammar makes answers that obey.  This is a second look, at the text that the client gets: workers may be of
another build, and other platforms, which may answer in our place, of any.  It is taken once, at the end of each
choice; choices that were cut short, by their length, a stop string or token, or a policy, are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos.common.errors import Internal
from stratos.core.requests.tools import ToolMode, ToolUse
from stratos.text.output.call_grammar import enforced_schemas, enforced_tools
from stratos.text.output.events import CallArguments, CallBegin, CallEnd, TextDelta
from stratos.text.output.parser import OutputParser
from stratos.text.output.schema_check import breach_of_text
from stratos_gateway.answering.output import AnswerCheck
from stratos_gateway.openai.chunks import ChoiceChunk
from stratos_gateway.openai.rendering import Answer

DISOBEYS = "the answer does not obey what the request asked it to: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obligations:
    """Schemas of an answer."""

    content: Mapping[str, Any] | None = None
    """Schema that its text obeys, beside calls."""
    use: ToolUse | None = None
    """Tools whose calls are enforced."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens at which the client wants the answer cut."""


class FinishedCheck(AnswerCheck):
    """Belongs to one answer.

    Args:
        answer: that is checked.
        wanted: of its request.
    """

    def __init__(self, answer: Answer, wanted: Obligations) -> None:
        self._answer, self._wanted = answer, wanted
        self._failure: Internal | None = None
        self._texts: defaultdict[int, list[str]] = defaultdict(list)

    def add(self, choice: int, text: str) -> None:
        """Take a piece of text of a choice that goes on."""
        self._texts[choice].append(text)

    def require(self, chunks: Iterable[ChoiceChunk]) -> None:
        """Take what is new, before the client is told.

        Raises:
            Internal: a choice has ended by itself, now or before, and does not obey.
        """
        if not self.passes(chunks):
            assert self._failure is not None
            raise self._failure

    def passes(self, chunks: Iterable[ChoiceChunk]) -> bool:
        """The same, without raising."""
        for chunk in chunks:
            self.add(chunk.index, chunk.text)
            if not chunk.ends_text:
                continue
            text = "".join(self._texts.pop(chunk.index))
            is_cut = chunk.stop is not None or not self._wanted.stop_ids.isdisjoint(chunk.token_ids[-1:])
            if chunk.finish_reason == "stop" and not is_cut and (found := self._breach(chunk.index, text)):
                self._failure = Internal(DISOBEYS.format(found))
        return self._failure is None

    def _breach(self, choice: int, text: str) -> str | None:
        wanted = self._wanted
        content, calls = text, list[_Told]()
        if self._answer.shape is not None:
            content, calls = _read(self._answer.parser_of(choice), text)
        use = wanted.use
        if use is not None:
            if not calls and use.mode in (ToolMode.REQUIRED, ToolMode.NAMED):
                return "it has no call"
            if (found := _breach_of_calls(use, calls)) is not None:
                return found
        if wanted.content is None or calls:
            return None
        found = breach_of_text(content, wanted.content)
        return found and f"its text breaks {found}"


@dataclass(slots=True)
class _Told:
    """A call as its text has it."""

    name: str
    arguments: str = ""
    is_complete: bool = False


def _read(parser: OutputParser, text: str) -> tuple[str, list[_Told]]:
    """Text and calls of an output."""
    content, calls = list[str](), list[_Told]()
    for event in [*parser.feed(text), *parser.finish()]:
        match event:
            case TextDelta(piece):
                content.append(piece)
            case CallBegin(_, name):
                calls.append(_Told(name))
            case CallArguments(_, piece):
                calls[-1].arguments += piece
            case CallEnd(_, is_complete):
                calls[-1].is_complete = is_complete
    return "".join(content), calls


def _breach_of_calls(use: ToolUse, calls: Sequence[_Told]) -> str | None:
    schemas = {tool.name: schema for tool, schema in zip(enforced_tools(use), enforced_schemas(use), strict=True)}
    if len(calls) > 1 and (use.mode is ToolMode.NAMED or not use.is_parallel):
        return "it has more than one call"
    for call in calls:
        if call.name not in schemas:
            return "it calls what was not offered"
        found = breach_of_text(call.arguments, schemas[call.name]) if call.is_complete else "JSON"
        if found is not None:
            return f"the arguments of a call break {found}"
    return None
