"""Rules of the model ``auto`` from the command line: read from files, and told as a table of quality and cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest, NotFound
from stratos.rpc.clients.admin import AdminClient
from stratos.store.models.choice_forms import choice_from_json
from stratos.store.models.choice_rules import AUTO, ChoiceRule, ChoiceRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAsk:
    """Options that a person has written; raises ``BadRequest`` for those that do not go together."""

    tenant: str
    """Whose rules; empty for those of all tenants."""
    rules: Path | None
    scores: Path | None
    """Quality by task and model, in place of what the rules say."""
    verbs: Mapping[str, bool]
    """``on``, ``off`` and ``remove``, and whether each was asked for."""

    def __post_init__(self) -> None:
        asked = [f"--{verb}" for verb, is_asked in self.verbs.items() if is_asked]
        if len(asked) + (self.rules is not None) > 1:
            raise BadRequest("one at a time: --rules, --on, --off, --remove", param="--rules")
        if self.scores is not None and self.rules is None:
            raise BadRequest("scores are written with the rules that use them: add --rules", param="--scores")

    @property
    def name(self) -> str:
        """Id of the rules."""
        return f"{self.tenant}/{AUTO}" if self.tenant else AUTO

    def body(self) -> dict[str, Any]:
        """Rules of the files, as the admin API takes them."""
        assert self.rules is not None
        value = _object_in(self.rules)
        if self.scores is not None:
            value["scores"] = _object_in(self.scores)
        choice_from_json(self.name, value)  # a mistake is told before anything is asked
        return value


def call_choices(client: AdminClient, ask: ChoiceAsk) -> dict[str, Any] | None:
    """Write, turn, remove or read rules; ``None`` where they are removed. Raises ``StratosError``."""
    if ask.rules is not None:
        return client.call("PUT", f"/choices/{ask.name}", ask.body())
    for verb in ("on", "off"):
        if ask.verbs[verb]:
            return client.call("POST", f"/choices/{ask.name}/{verb}")
    if ask.verbs["remove"]:
        client.call("DELETE", f"/choices/{ask.name}")
        return None
    found = [row for row in client.call("GET", "/choices")["data"] if row["name"] == ask.name]
    if not found:
        raise NotFound(f"there are no rules {ask.name!r}: no request for {AUTO!r} is answered by them")
    row: dict[str, Any] = found[0]
    return row


def choices_text(client: AdminClient, row: Mapping[str, Any], plan: str) -> str:
    """Rules for people: each with its models, their scores, and their prices by a plan."""
    rules = choice_from_json(row["name"], {name: row[name] for name in row if name != "name"})
    prices = _prices(client, plan)
    head = f"{row['name']}: {'on' if rules.is_on else 'OFF'}, else {rules.default}"
    return "\n".join([head, *(line for rule in rules.rules for line in _told(rule, rules, prices))])


def _told(rule: ChoiceRule, rules: ChoiceRules, prices: Mapping[str, str]) -> Iterator[str]:
    span = f"{rule.min_chars}-{'' if rule.max_chars is None else rule.max_chars} characters"
    parts = [
        f"one of {', '.join(rule.keywords)}" if rule.keywords else "",
        span if rule.min_chars or rule.max_chars is not None else "",
        f"wants {' and '.join(rule.needs)}" if rule.needs else "",
        f"plan {' or '.join(rule.plans)}" if rule.plans else "",
        f"score of {rule.at_least:g}" if rule.at_least is not None else "",
    ]
    yield f"  {rule.name}: {'; '.join(part for part in parts if part) or 'always'}"
    for model in rules.adequate(rule):
        score = rules.score(rule, model)
        yield f"    {model:<24} {'-' if score is None else f'{score:g}':>6}  {prices.get(model, '')}".rstrip()


def _prices(client: AdminClient, plan: str) -> dict[str, str]:
    """Price of each model by a plan, as a text; empty without a plan."""
    if not plan:
        return {}
    found = next((row for row in client.call("GET", "/plans")["data"] if row["name"] == plan), None)
    if found is None:
        raise NotFound(f"there is no plan {plan!r}")
    rows = {model["name"]: model.get("size", "") for model in client.call("GET", "/models")["data"]}
    listed = found.get("prices", {})
    prices = {name: listed.get(size) or listed.get("default") or {} for name, size in rows.items()}
    return {name: f"{price.get('prompt', 0)} + {price.get('output', 0)}" for name, price in prices.items()}


def _object_in(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} holds no JSON: {error}", param=str(path)) from None
    if not isinstance(value, dict):
        raise BadRequest(f"{path} holds no JSON object", param=str(path))
    return value
