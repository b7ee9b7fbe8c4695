"""Rules of an answer that is text, in which calls are marked or begin the whole."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.text.output.answer_grammar import AnswerGrammar
from stratos.text.output.notation.lark import ANY, ANYTHING, escaped, regex, without

_BLANKS = r"[ \t\r\n]*"


@dataclass(frozen=True, slots=True)
class PlainGrammar(AnswerGrammar):
    """Reasoning between tags, if there is any, then text or calls."""

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
            return [*self._start(), "body: PLAIN", f"PLAIN: {self._text}"]
        return [*self._start(), *(self._starting() if self._form.unlike else self._marked())]

    def _start(self) -> list[str]:
        """Rules for what comes before ``body``."""
        tags = self.shape.reasoning
        if tags is None:
            return ["start: body"]
        thought = [*self.lark.up_to("thought", tags.end, most_tokens=self.budget), "gap: /[ \\n]{0,4}/"]
        if self.shape.is_reasoning:
            return ["start: thought gap body", *thought]
        return [f"start: body | {self.lark.literal(tags.begin)} thought gap body", *thought]

    @property
    def _text(self) -> str:
        """Terminal of free text: one that would be read as reasoning is none."""
        tags = self.shape.reasoning
        if tags is None or self.shape.is_reasoning:
            return ANY
        return f"{ANY} & ~{regex(f'{_BLANKS}{escaped(tags.begin)}{ANYTHING}')}"

    def _calls(self) -> list[str]:
        form, literal = self._form, self.lark.literal
        return [
            f"calls: {literal(form.opening)} call {self._more} {literal(form.closing)}",
            self._call("call", form.before),
        ]

    def _marked(self) -> list[str]:
        """Calls begin with the first mark; others, after which a call is read as well, stand within them alone."""
        form, literal = self._form, self.lark.literal
        head = form.opening + form.before
        mark, *others = self._syntax.marks
        assert head.startswith(mark), "a mark begins the calls"
        calls = f"head first {self._more} {literal(form.closing)}"
        return [
            f"body: PLAIN | {calls}" if self.is_one else f"body: ({calls})* PLAIN",
            f"PLAIN: {without([mark, *others], self._text)}",
            *self.lark.up_to("head", mark, without(others, self._text)),
            self._call("first", head.removeprefix(mark)),
            self._call("call", form.before),
        ]

    def _starting(self) -> list[str]:
        """Calls begin the answer, or stand behind a mark; what follows them ends it."""
        mark, *others = self._syntax.marks
        assert not others, "one mark at most beside the beginning"
        text = f"{self._text} & ~{regex(f'({self._form.unlike}){ANYTHING}')}"
        return [
            f"body: first {self._more} {self.lark.literal(self._form.closing)} | PLAIN | head calls",
            f"PLAIN: {without([mark], text)}",
            *self.lark.up_to("head", mark, text),
            self._call("first", self._form.opening + self._form.before),
            *self._calls(),
        ]

    def _call(self, rule: str, before: str) -> str:
        return self._alternatives(rule, before, self.lark.literal(self._form.after))
