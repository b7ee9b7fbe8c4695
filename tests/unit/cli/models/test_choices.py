"""Rules of the model ``auto`` from the command line: what is asked of the admin API, and what people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from stratos.cli.models.choices import ChoiceAsk, call_choices, choices_text
from stratos.common.errors import BadRequest, NotFound
from stratos.rpc.clients.admin import AdminClient

RULES: dict[str, Any] = {
    "default": "base",
    "rules": [
        {"name": "code", "keywords": ["python"], "plans": ["paid"], "at_least": 0.5},
        {"name": "short", "max_chars": 9, "needs": ["tools"], "models": ["base"]},
        {"name": "rest", "models": ["small"]},
    ],
}
SCORES = {"code": {"small": 0.4, "base": 0.75}}
NONE = {"on": False, "off": False, "remove": False}


class Admin:
    """Takes calls, and knows one table."""

    def __init__(self) -> None:
        self.calls = list[tuple[Any, ...]]()

    def call(self, *what: Any) -> dict[str, Any]:
        self.calls.append(what)
        return {
            "/choices": {"data": [{"name": "auto", "is_on": True, **RULES, "scores": SCORES}]},
            "/plans": {"data": [{"name": "paid", "prices": {"tiny": {"prompt": 3, "output": 9}}}]},
            "/models": {"data": [{"name": "base", "size": "tiny"}, {"name": "small"}]},
        }.get(what[1], {"name": "auto"})


def ask(rules: Path | None = None, scores: Path | None = None, tenant: str = "", **verbs: bool) -> ChoiceAsk:
    return ChoiceAsk(tenant=tenant, rules=rules, scores=scores, verbs=NONE | verbs)


def call(asked: ChoiceAsk) -> tuple[Any, ...]:
    admin = Admin()
    call_choices(cast("AdminClient", admin), asked)
    return admin.calls[-1]


def written(folder: Path, name: str, value: Any) -> Path:
    (folder / name).write_text(json.dumps(value))
    return folder / name


def test_every_option_is_a_call(tmp_path: Path) -> None:
    rules, scores = written(tmp_path, "rules", RULES), written(tmp_path, "scores", SCORES)
    assert call(ask(rules, scores, "acme")) == ("PUT", "/choices/acme/auto", {**RULES, "scores": SCORES})
    assert call(ask(on=True)) == ("POST", "/choices/auto/on")
    assert call(ask(off=True, tenant="acme")) == ("POST", "/choices/acme/auto/off")
    assert call(ask(remove=True)) == ("DELETE", "/choices/auto")
    with pytest.raises(NotFound):
        call(ask(tenant="acme"))


def test_mistakes_are_told_before_anything_is_asked(tmp_path: Path) -> None:
    rules = written(tmp_path, "rules", RULES)
    for wrong in ({"on": True, "off": True}, {"rules": rules, "remove": True}, {"scores": rules}):
        with pytest.raises(BadRequest):
            ask(**wrong)
    for path in (rules, tmp_path / "none", written(tmp_path, "list", [])):  # the first one lacks its scores
        with pytest.raises(BadRequest):
            call(ask(path))


def test_the_table_shows_scores_and_prices() -> None:
    admin = cast("AdminClient", Admin())
    row = call_choices(admin, ask())
    assert row is not None
    assert choices_text(admin, row, "paid").splitlines() == [
        "auto: on, else base",
        "  code: one of python; plan paid; score of 0.5",
        "    base                       0.75  3 + 9",
        "  short: 0-9 characters; wants tools",
        "    base                          -  3 + 9",
        "  rest: always",
        "    small                         -  0 + 0",
    ]
    assert "9" not in choices_text(admin, row, "").replace("0-9", "")
    with pytest.raises(NotFound):
        choices_text(admin, row, "none")
