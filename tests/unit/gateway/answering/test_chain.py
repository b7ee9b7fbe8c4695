"""Fallback chains as a body names them: every form that is none has its answer."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos_gateway.answering.chain import MAX_MODELS, FallbackChain, bodies_of, chain_of, check_alone

NAMES = ["a", "b"]


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"models": []}, "models", "1 to 8"),
        ({"models": "a"}, "models", "list"),
        ({"models": None}, "models", "list"),
        ({"models": ["a", 1]}, "models", "list"),
        ({"models": ["a", ""]}, "models", "list"),
        ({"models": ["a", "b", "a"]}, "models", "twice"),
        ({"models": [str(number) for number in range(MAX_MODELS + 1)]}, "models", "1 to 8"),
        ({"models": NAMES, "model": "b"}, "model", "first"),
    ],
)
def test_what_is_no_chain_is_refused(body: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as refusal:
        chain_of(body)
    assert refusal.value.param == param


@pytest.mark.parametrize("param", ["models", "model"])
@pytest.mark.parametrize("name", ["continuation_token", "background"])
def test_what_is_of_one_model_names_it(name: str, param: str) -> None:
    with pytest.raises(BadRequest, match=name) as refusal:
        check_alone({name: "x"}, param)
    assert refusal.value.param == param


def test_each_model_gets_the_body_as_if_it_was_named_alone() -> None:
    body = {"models": NAMES, "model": "a", "prompt": "x"}
    assert bodies_of(chain_of(body), body) == [{"model": "a", "prompt": "x"}, {"model": "b", "prompt": "x"}]


def test_headers_and_receipt_name_who_answers_and_who_refused() -> None:
    chain = FallbackChain(("a", "b"), [("a", "overloaded")])
    assert chain.headers("b") == [(b"x-stratos-model", b"b"), (b"x-stratos-model-refused", b"a=overloaded")]
    assert chain.headers() == [(b"x-stratos-model-refused", b"a=overloaded")]
    assert chain.section("b") == {"asked": ["a", "b"], "model": "b", "refused": [["a", "overloaded"]]}


def test_a_choice_is_told_and_counted_with_its_reason() -> None:
    counted = list[tuple[str, str]]()
    chain = FallbackChain(("a", "b"), rule="code", reason="rule", count=lambda *what: counted.append(what))
    assert chain.headers("a") == [(b"x-stratos-model", b"a"), (b"x-stratos-model-rule", b"code")]
    assert chain.section("a") == {"asked": ["a", "b"], "rule": "code", "reason": "rule", "model": "a", "refused": []}
    chain.note_answer("a")
    chain.refused.append(("a", "overloaded"))
    chain.note_answer("b")
    assert counted == [("a", "rule"), ("b", "fallback")]
