"""What many bodies ask for alike is read once."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos_gateway.completion.requests import parse_completion
from stratos_gateway.http.body import Leniently
from stratos_gateway.openai.requests import GenerationOptions


def options(**fields: Any) -> GenerationOptions:
    return parse_completion({"model": "base", "prompt": [5], **fields}, 100).options


def test_bodies_that_differ_in_their_prompt_alone_have_one_record_of_options() -> None:
    asked = {"max_tokens": 3, "temperature": 0.5, "stream": True}
    assert options(**asked) is options(prompt="other", **asked)
    assert options(**asked).sampling == {"temperature": 0.5, "ignore_eos": False} | options().sampling
    assert options(max_tokens=4, temperature=0.5, stream=True).max_tokens == 4


@pytest.mark.parametrize(
    "own", [{"seed": 7}, {"user": "u"}, {"stop": ["x"]}, {"metadata": {"a": "b"}}, {"stop": "x" * 65}]
)
def test_what_is_of_one_body_alone_is_not_kept(own: dict[str, Any]) -> None:
    assert options(**own) is not options(**own)
    assert options(**own) == options(**own)


def test_equal_values_of_other_types_are_told_apart() -> None:
    assert options(ignore_eos=True).sampling["ignore_eos"] is True
    with pytest.raises(BadRequest, match="ignore_eos must be true or false"):
        options(ignore_eos=1)
    assert options(temperature=1).sampling["temperature"] == options(temperature=1.0).sampling["temperature"]
    with pytest.raises(BadRequest, match="temperature must be a number"):
        options(temperature=True)


def test_a_wrong_field_is_refused_each_time_and_listed_each_time() -> None:
    for _ in range(2):
        with pytest.raises(BadRequest, match="unknown parameter 'temprature'"):
            options(temprature=1)
        with Leniently(is_lenient=True) as unknown:
            options(temprature=1)
        assert unknown == ["temprature"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [100]}, "prompt"),
        ({"prompt": [5, "a"]}, "prompt"),
        ({"prompt": [], "temperature": 9}, "prompt"),
        ({"prompt": [], "suffix": "x"}, "suffix"),
        ({"prompt": [[5]] * 64, "n": 3}, "n"),
        ({"prompt": [[5]] * 64, "n": 1, "best_of": 3}, "best_of"),
    ],
)
def test_the_first_fault_of_a_body_is_told_whether_it_is_in_the_prompt_or_beside_it(
    fields: dict[str, Any], param: str
) -> None:
    for _ in range(2):
        with pytest.raises(BadRequest) as refused:
            options(**fields)
        assert refused.value.param == param


def test_a_body_that_was_read_before_has_its_own_prompts() -> None:
    parsed = [parse_completion({"model": "base", "prompt": p, "echo": True}, 100) for p in ("a", ["b", "c"], [5, 6])]
    assert [body.prompts for body in parsed] == [("a",), ("b", "c"), ((5, 6),)]
    assert all(body.echo and body.options is parsed[0].options for body in parsed)
