"""Rules of an output that is messages, each in a frame: reasoning, texts, calls."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.text.output.answer_grammar import AnswerGrammar
from stratos.text.output.notation.lark import without
from stratos.text.output.syntax import FrameForm


@dataclass(frozen=True, slots=True)
class FramedGrammar(AnswerGrammar):
    """The last message has no end; with a budget, reasoning is one message at the beginning."""

    def forced(self) -> list[str]:
        """Reasoning, and calls."""
        return [f"start: {self._thoughts} calls", *self._thought(), *self._calls()]

    def bound(self) -> list[str]:
        """Reasoning, and calls or content."""
        answer = f"{self.lark.literal(self._frame.texts[-1])} content"
        body = f"calls | {answer}" if self.names else answer
        return [f"start: {self._thoughts} ({body})", *self._thought(), *(self._calls() if self.names else [])]

    def free(self) -> list[str]:
        """Messages of all kinds; after the only call nothing may come."""
        frame, literal = self._frame, self.lark.literal
        first, kinds = ("", (frame.reasoning, *frame.texts)) if self.budget is None else (self._thoughts, frame.texts)
        inner, last = "text", "opening LAST"
        if self.names:
            inner, last = inner if self.is_one else f"(text | call {literal(self._close)})", f"(call | {last})"
        return [
            f"start: {first} ({inner} {literal(frame.following)})* {last}",
            "text: opening words",
            f"opening: {' | '.join(map(literal, kinds))}",
            f"LAST: {without((frame.end, *frame.barred))}",
            *self.lark.up_to("words", frame.end, without(frame.barred)),
            *(self._thought() if first else []),
            *([self._call()] if self.names else []),
        ]

    @property
    def _frame(self) -> FrameForm:
        assert self._form.frame is not None, "of a syntax that frames"
        return self._form.frame

    @property
    def _close(self) -> str:
        """End of a call that others follow."""
        return self._form.between.removesuffix(self._frame.following)

    @property
    def _thoughts(self) -> str:
        return "thought*" if self.budget is None else "thought?"

    def _thought(self) -> list[str]:
        frame, literal = self._frame, self.lark.literal
        return [
            f"thought: {literal(frame.reasoning)} pondered {literal(frame.following)}",
            *self.lark.up_to("pondered", frame.end, without(frame.barred), self.budget),
        ]

    def _calls(self) -> list[str]:
        return [f"calls: call {self._more}", self._call()]

    def _call(self) -> str:
        return self._alternatives("call", self._form.before)
