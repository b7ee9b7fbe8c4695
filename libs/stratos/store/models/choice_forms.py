"""Rules of the model ``auto`` as JSON and back.

{"default": "small",
 "rules": [{"name": "code", "keywords": ["python", "stack trace"], "at_least": 0.6}],
 "scores": {"code": {"small": 0.41, "base": 0.78}}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, with_config

from stratos.common.errors import BadRequest
from stratos.common.json_fields import from_fields
from stratos.store.models.choice_rules import AUTO, ChoiceRule, ChoiceRules

MAX_RULES, MAX_KEYWORDS, MAX_MODELS, MAX_TASKS = 32, 64, 8, 64
"""Models are those that one request is tried with, as of a chain."""
_RULE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}\Z")
_WORD = re.compile(r"\w+")
_ADAPTER = TypeAdapter(with_config(ConfigDict(extra="forbid"))(ChoiceRules))


def words_of(text: str) -> str:
    """Words of a text in small letters, with a blank around each: keywords are found in it as they stand."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def check_choice_id(record_id: str) -> str:
    """Owner in the id of a table, ``auto`` or ``<tenant>/auto``; "" for all tenants.

    Raises:
        BadRequest: it is none.
    """
    owner, slash, name = record_id.rpartition("/")
    if name != AUTO or bool(slash) != bool(owner):
        raise BadRequest(f"rules are those of {AUTO!r}, or of TENANT/{AUTO}", param="name")
    return owner


def check_not_auto(name: str) -> None:
    """Refuse a model or an alias with the name that the rules stand behind; raises ``BadRequest``."""
    if name == AUTO:
        raise BadRequest(f"{AUTO!r} is the name behind which rules choose a model; take another one", param="name")


def choice_from_json(record_id: str, value: object) -> ChoiceRules:
    """The table that an object says; fields it lacks have their defaults.

    Raises:
        BadRequest: an unknown field, or a value that cannot be; ``param`` names the field.
    """
    check_choice_id(record_id)
    if not isinstance(value, dict):
        raise BadRequest("rules are an object of their fields", param="rules")
    found = from_fields(_ADAPTER, value, what=f"rules of {record_id!r}", param="rules")
    if len(found.rules) > MAX_RULES or len({rule.name for rule in found.rules}) < len(found.rules):
        raise BadRequest(f"there are at most {MAX_RULES} rules, each with a name of its own", param="rules")
    if len(found.scores) > MAX_TASKS or any(len(row) > MAX_TASKS for row in found.scores.values()):
        raise BadRequest(f"scores are of at most {MAX_TASKS} tasks and {MAX_TASKS} models each", param="scores")
    if AUTO in found.models:
        raise BadRequest(f"rules choose among models; {AUTO!r} is none", param="rules")
    for number, rule in enumerate(found.rules):
        _check_rule(rule, found, f"rules.{number}")
    return found


def choice_to_json(rules: ChoiceRules) -> dict[str, Any]:
    """Every field that has another value than its default."""
    value: Mapping[str, Any] = _ADAPTER.dump_python(rules, mode="json", exclude_defaults=True)
    return dict(value)


def _check_rule(rule: ChoiceRule, rules: ChoiceRules, param: str) -> None:
    if not _RULE_NAME.match(rule.name):
        raise BadRequest("the name of a rule is 1 to 32 of a-z 0-9 _ -", param=f"{param}.name")
    if len(rule.keywords) > MAX_KEYWORDS or any(not words_of(word).strip() for word in rule.keywords):
        raise BadRequest(f"a rule has at most {MAX_KEYWORDS} keywords, which are words", param=f"{param}.keywords")
    if rule.max_chars is not None and rule.max_chars < rule.min_chars:
        raise BadRequest("max_chars is below min_chars", param=f"{param}.max_chars")
    if rule.at_least is not None and (rule.task or rule.name) not in rules.scores:
        raise BadRequest(f"there are no scores of {rule.task or rule.name!r}", param=f"{param}.at_least")
    if not 1 <= len(rules.adequate(rule)) <= MAX_MODELS:
        text = f"rule {rule.name!r}: 1 to {MAX_MODELS} models may answer, not {len(rules.adequate(rule))}"
        raise BadRequest(text, param=f"{param}.models")
