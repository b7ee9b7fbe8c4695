"""The contract of a writer of grammars: rules of one answer, by what it has to obey."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from stratos.text.output.notation.lark import LarkWriter
from stratos.text.output.parser import OutputShape
from stratos.text.output.syntax import CallForm, CallSyntax


@dataclass(frozen=True, slots=True)
class AnswerGrammar(ABC):
    """Writes all rules but those of arguments, ``args_0`` and so on, and of ``content``."""

    shape: OutputShape
    lark: LarkWriter
    names: Sequence[str]
    """Functions that may be called."""
    is_one: bool
    """There is one call at most."""
    budget: int | None = None
    """Most tokens of reasoning."""

    @abstractmethod
    def forced(self) -> list[str]:
        """Nothing but calls after the reasoning: one, or as many as the model likes."""

    @abstractmethod
    def bound(self) -> list[str]:
        """Calls, or content."""

    @abstractmethod
    def free(self) -> list[str]:
        """Text, and calls in it; after the only one nothing may come."""

    @property
    def _syntax(self) -> CallSyntax:
        assert self.shape.syntax is not None, "there are tools, or the output is framed"
        return self.shape.syntax

    @property
    def _form(self) -> CallForm:
        return self._syntax.form

    @property
    def _more(self) -> str:
        """Further calls after the first one."""
        return "" if self.is_one else f"({self.lark.literal(self._form.between)} call)*"

    def _alternatives(self, rule: str, before: str, after: str = "") -> str:
        """A call of any of the functions, whose arguments stand between two texts."""
        texts = [self.lark.literal(before.replace("{name}", name)) for name in self.names]
        return f"{rule}: " + " | ".join(f"{text} args_{place} {after}" for place, text in enumerate(texts))
