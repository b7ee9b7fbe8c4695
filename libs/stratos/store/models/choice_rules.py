"""Rules by which the model ``auto`` becomes one that answers: the first rule that fits names the models that are good
enough, and their prices say which of them is asked first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Interval, Len

AUTO = "auto"
"""Name of a model that stands for whichever the rules choose."""
Name = Annotated[str, Len(1, 128)]
Score = Annotated[float, Interval(ge=0, le=1)]


class Need(StrEnum):
    """Demand of a request that rules can tell."""

    TOOLS = "tools"
    SCHEMA = "schema"
    """An answer in JSON, or by a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRule:
    """One row of the table: it fits where all that it says holds."""

    name: str
    """For receipts and headers."""
    keywords: tuple[Name, ...] = ()
    """Words, or words in a row; one of them must be in the last text of the user."""
    min_chars: Annotated[int, Ge(0)] = 0
    """Fewest characters of all texts of the prompt."""
    max_chars: Annotated[int, Ge(0)] | None = None
    """Most characters; ``None`` is no bound."""
    needs: tuple[Need, ...] = ()
    """The request wants all of these."""
    plans: tuple[Name, ...] = ()
    """The tenant has one of these; empty is any."""
    models: tuple[Name, ...] = ()
    """Models that may answer; empty is every one with a score."""
    task: str = ""
    """Row of the scores; empty is the one with the rule's name."""
    at_least: Score | None = None
    """Least score of a model that may answer; ``None`` asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRules:
    """Table of one tenant, or of all tenants that have none."""

    default: Name
    """Model that answers where no rule fits, or none of a rule's models may be used, or the rules are off."""
    rules: tuple[ChoiceRule, ...] = ()
    """The first one that fits decides."""
    scores: Mapping[Name, Mapping[Name, Score]] = field(default_factory=dict)
    """Quality by task and model, from 0 to 1."""
    is_on: bool = True
    """False sends every request to the default."""

    def score(self, rule: ChoiceRule, model: str) -> float | None:
        """How good a model is at a rule's task; ``None`` where nothing is known."""
        return self.scores.get(rule.task or rule.name, {}).get(model)

    def adequate(self, rule: ChoiceRule) -> Sequence[str]:
        """Models that are good enough for a rule, in the order of the table."""
        names = rule.models or tuple(self.scores.get(rule.task or rule.name, {}))
        return [name for name in names if self._is_adequate(rule, name)]

    def _is_adequate(self, rule: ChoiceRule, model: str) -> bool:
        if rule.at_least is None:
            return True
        score = self.score(rule, model)
        return score is not None and score >= rule.at_least

    @property
    def models(self) -> frozenset[str]:
        """Every model that may be chosen."""
        return frozenset({self.default}.union(*(self.adequate(rule) for rule in self.rules)))
