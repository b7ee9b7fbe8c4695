"""Rules of an answer that is text, in which calls are marked or begin the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratos.text.output.notation.lark import ANY, ANYTHING, LarkWriter, regex, without
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallForm, CallSyntax


@dataclass(frozen=True, slots=True)
class PlainGrammar:
    """Writes all rules but those of arguments, ``args_0`` and so on, and of ``content``."""

    shape: OutputShape
    lark: LarkWriter
    names: Sequence[str]
    """Functions that may be called."""
    is_one: bool
    """There is one call at most."""
    budget: int | None = None
    """Most tokens of reasoning."""

    def forced(self) -> list[str]:
        """Nothing but calls: one, or as many as the model likes."""
        return [*self._start(), "body: calls", *self._calls()]

    def bound(self) -> list[str]:
        """Calls, or content."""
        if not self.names:
            return [*self._start(), "body: content"]
        return [*self._start(), "body: calls | content", *self._calls()]

    def free(self) -> list[str]:
        """Text, and calls in it; after the only one nothing may come."""
        if not self.names:
            return [*self._start(), "body: PLAIN", f"PLAIN: {ANY}"]
        return [*self._start(), *(self._starting() if self._form.unlike else self._marked())]

    @property
    def _syntax(self) -> CallSyntax:
        assert self.shape.syntax is not None, "there are tools"
        return self.shape.syntax

    @property
    def _form(self) -> CallForm:
        return self._syntax.form

    def _start(self) -> list[str]:
        """Rules for what comes before ``body``."""
        tags = self.shape.reasoning
        if tags is None:
            return ["start: body"]
        thought = [*self.lark.up_to("thought", tags.end, most_tokens=self.budget), "gap: /[ \\n]{0,4}/"]
        if self.shape.is_reasoning:
            return ["start: thought gap body", *thought]
        return [f"start: body | {self.lark.literal(tags.begin)} thought gap body", *thought]

    def _calls(self) -> list[str]:
        form, literal = self._form, self.lark.literal
        return [
            f"calls: {literal(form.opening)} call {self._more} {literal(form.closing)}",
            *self._alternatives("call", form.before),
        ]

    @property
    def _more(self) -> str:
        return "" if self.is_one else f"({self.lark.literal(self._form.between)} call)*"

    def _marked(self) -> list[str]:
        """Calls begin with the first mark; others, after which a call is read as well, stand within them alone."""
        form, literal = self._form, self.lark.literal
        head = form.opening + form.before
        mark, *others = self._syntax.marks
        assert head.startswith(mark), "a mark begins the calls"
        calls = f"head first {self._more} {literal(form.closing)}"
        return [
            f"body: PLAIN | {calls}" if self.is_one else f"body: ({calls})* PLAIN",
            f"PLAIN: {without([mark, *others])}",
            *self.lark.up_to("head", mark, without(others)),
            *self._alternatives("first", head.removeprefix(mark)),
            *self._alternatives("call", form.before),
        ]

    def _starting(self) -> list[str]:
        """Calls begin the answer, or stand behind a mark; what follows them ends it."""
        mark, *others = self._syntax.marks
        assert not others, "one mark at most beside the beginning"
        text = f"{ANY} & ~{regex(f'({self._form.unlike}){ANYTHING}')}"
        return [
            f"body: first {self._more} {self.lark.literal(self._form.closing)} | PLAIN | head calls",
            f"PLAIN: {without([mark], text)}",
            *self.lark.up_to("head", mark, text),
            *self._alternatives("first", self._form.opening + self._form.before),
            *self._calls(),
        ]

    def _alternatives(self, rule: str, before: str) -> list[str]:
        """A call of any of the functions."""
        after = self.lark.literal(self._form.after)
        texts = [self.lark.literal(before.replace("{name}", name)) for name in self.names]
        return [f"{rule}: " + " | ".join(f"{text} args_{i} {after}" for i, text in enumerate(texts))]
