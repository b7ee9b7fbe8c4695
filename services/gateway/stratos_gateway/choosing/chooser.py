"""From a body that names ``auto`` to the models that are asked.

first rule that fits ──▶ its models that are good enough ──▶ those that the key may use and that can do it
    ──▶ the cheapest first, by the tenant's own prices ──▶ the session's model before them, where it is one of them

What comes of it is a chain: where the first model has no room, the next one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from stratos.common.errors import DependencyDown, ModelNotFound, StratosError
from stratos.core.tenant import Tenant
from stratos.store.counters.choice_affinity import ChoiceAffinity
from stratos.store.models.choice_forms import words_of
from stratos.store.models.choice_rules import AUTO, ChoiceRule, ChoiceRules
from stratos_gateway.choices.asked import CHARS_PER_TOKEN, Asked, asked_of
from stratos_gateway.choices.source import ChoiceSource
from stratos_gateway.models.catalogue import ModelTarget
from stratos_gateway.openai.fields import session_of

AFFINITY_WAIT_S = 0.25
"""Longest wait for the session's model; without it the cheapest one is asked."""
OFF, DEFAULT = "off", "default"
_words_of = lru_cache(4096)(words_of)
"""Of keywords, which are few."""


class Resolve(Protocol):
    """Finds what a tenant's name of a model stands for; raises ``StratosError`` where that is nothing."""

    def __call__(self, tenant: Tenant, name: str) -> Awaitable[ModelTarget]:
        """Look a name up."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Models that were chosen, and why."""

    names: Sequence[str]
    """Models in the order in which they are asked."""
    rule: str
    """Name of the rule, or why there is none."""
    is_kept: bool = False
    """The first one is the session's, and not the cheapest."""


class ModelChooser:
    """Belongs to the event loop.

    Args:
        source: of rules.
        resolve: names of models.
        affinity: remembers sessions; ``None`` chooses each request by itself.
    """

    def __init__(self, source: ChoiceSource, resolve: Resolve, affinity: ChoiceAffinity | None = None) -> None:
        self._source = source
        self._resolve = resolve
        self._affinity = affinity

    def is_asked(self, tenant: Tenant, body: Mapping[str, Any]) -> bool:
        """Whether a body leaves the choice to the rules; without any the name is one like others."""
        return body.get("model") == AUTO and self._source.find(tenant.name) is not None

    async def choose(self, tenant: Tenant, body: Mapping[str, Any]) -> Choice:
        """The models that may answer a body.

        Raises:
            ModelNotFound: the key may use none of them.
        """
        rules = self._source.find(tenant.name)
        if rules is None:
            raise _none_for("there are no rules")
        asked = asked_of(body)
        rule = matching(rules, tenant.plan.name, asked) if rules.is_on else None
        names = [] if rule is None else await self._usable(tenant, asked, rules.adequate(rule))
        if rule is None or not names:
            why = OFF if not rules.is_on else DEFAULT
            if not (names := await self._usable(tenant, asked, [rules.default])):
                raise _none_for("the key may use no model that the rules name")
            return Choice(names, why)
        return await self._with_session(tenant, session_of(body), Choice(names, rule.name))

    async def _usable(self, tenant: Tenant, asked: Asked, names: Sequence[str]) -> list[str]:
        """Models that the key may use and that can answer, the cheapest first; equal ones stay in their order."""
        costs = dict[str, int]()
        for name in names:
            try:
                target = await self._resolve(tenant, name)
            except StratosError:  # not for this key, blocked, or not here now
                continue
            base = target.served.base
            if base.can_generate and (base.can_chat or not asked.is_chat):
                costs[name] = expected_cost(tenant, base.size, asked)
        return sorted(costs, key=costs.__getitem__)

    async def _with_session(self, tenant: Tenant, session: str, choice: Choice) -> Choice:
        if self._affinity is None or not session:
            return choice
        kept = choice.names[0]
        with contextlib.suppress(DependencyDown, TimeoutError):
            async with asyncio.timeout(AFFINITY_WAIT_S):
                kept = await self._affinity.keep(tenant.id, session, choice.names)
        names = [kept, *(name for name in choice.names if name != kept)]
        return Choice(names, choice.rule, is_kept=kept != choice.names[0])


def matching(rules: ChoiceRules, plan: str, asked: Asked) -> ChoiceRule | None:
    """The first rule that fits; ``None`` where none does."""
    return next((rule for rule in rules.rules if _fits(rule, plan, asked)), None)


def expected_cost(tenant: Tenant, size: str, asked: Asked) -> int:
    """Price of a request in micro-units a million times over, as it looks before it is tokenized."""
    price = tenant.plan.price(size)
    return -(-asked.num_chars // CHARS_PER_TOKEN) * price.prompt + asked.max_tokens * price.output


def _fits(rule: ChoiceRule, plan: str, asked: Asked) -> bool:
    return (
        asked.num_chars >= rule.min_chars
        and (rule.max_chars is None or asked.num_chars <= rule.max_chars)
        and asked.needs.issuperset(rule.needs)
        and (not rule.plans or plan in rule.plans)
        and (not rule.keywords or any(_words_of(word) in asked.words for word in rule.keywords))
    )


def _none_for(why: str) -> ModelNotFound:
    return ModelNotFound(f"the model {AUTO!r} does not exist: {why}", param="model")
