"""Rules of an output that is messages, each in a frame: reasoning, texts, calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratos.text.output.notation.lark import LarkWriter, without
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallForm, FrameForm


@dataclass(frozen=True, slots=True)
class FramedGrammar:
    """Writes all rules but those of arguments (``args_0``, ...) and of ``content``; the last message has no end."""

    shape: OutputShape
    lark: LarkWriter
    names: Sequence[str]
    """Functions that may be called."""
    is_one: bool
    """There is one call at most."""
    budget: int | None = None
    """Most tokens of reasoning, which is then one message at the beginning."""

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
    def _form(self) -> CallForm:
        assert self.shape.syntax is not None, "it frames the output"
        return self.shape.syntax.form

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
        more = "" if self.is_one else f" ({self.lark.literal(self._form.between)} call)*"
        return [f"calls: call{more}", self._call()]

    def _call(self) -> str:
        texts = [self.lark.literal(self._form.before.replace("{name}", name)) for name in self.names]
        return "call: " + " | ".join(f"{text} args_{i}" for i, text in enumerate(texts))
