"""Templates that are hostile, variables that are hostile, and what an honest template renders."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.common.errors import BadRequest
from stratos.text.tenant_templates import (
    MAX_OUTPUT_CHARS,
    MAX_VARIABLE_CHARS,
    CompiledPrompt,
    check_defaults,
    check_variables,
)

ORDER = """\
Dear {{ name|trim|title }},
{% for item in order.items %}
{{ loop.index }}. {{ item.what }}{% if item.note is defined %} ({{ item.note|lower }}){% endif %}
{{ "" if loop.last else "," }}
{% endfor %}
{{ tags|join(", ") }} {{ order|tojson }}"""


def test_an_honest_template_is_rendered() -> None:
    prompt = CompiledPrompt(ORDER)
    assert prompt.variables == {"name", "order", "tags"}
    order = {"items": [{"what": "tea", "note": "HOT"}, {"what": "{{ name }} <b>"}]}
    assert prompt.render({"name": " ada ", "order": order, "tags": ["a", 1]}) == (
        "Dear Ada,\n1. tea (hot),\n2. {{ name }} <b>\na, 1 "
        '{"items": [{"what": "tea", "note": "HOT"}, {"what": "{{ name }} <b>"}]}'
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}", "{{ 10 ** 10 ** 10 }}", "{{ x % y }}", "{{ x ~ y }}", "{{ range(10) }}", "{{ x() }}",
        "{{ ''.format(x) }}", "{{ cycler }}{{ x.append(1) }}", "{% set a = 1 %}", "{% macro a() %}{% endmacro %}",
        "{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}", "{% block a %}{% endblock %}",
        "{% for i in x|list %}{% endfor %}", "{% for i in [1, 2] %}{% endfor %}",
        "{% for i in x recursive %}{% endfor %}",
        "{{ x|pprint }}", "{{ x|center(1000000) }}", "{{ x|replace('a', 'aaaa') }}", "{{ x|join('a')|join('a') }}",
        "{{ x|tojson|tojson }}", "{{ x|join('" + "a" * 17 + "') }}", "{{ x|lower|upper|lower|upper }}",
        "{{ _budget }}",
        "{{ self }}", "{{ x is divisibleby 3 }}", "{{ x[1:2] }}", "{{ {'a': x} }}", "{{ x", "{% if %}", "{{ x|nope }}",
        "".join(f"{{% for a{i} in x %}}" for i in range(4)) + "{% endfor %}" * 4,
        "{% if x %}" * 60 + "{% endif %}" * 60, "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "{{ " + "9" * 5000 + " }}",
        "{{ x }}" * 2001, "a" * 16_385, "{{ x|default(y) }}", "{{ x|trim('a') }}", "{% filter upper %}{% endfilter %}",
    ],
)  # fmt: skip
def test_what_a_template_may_not_hold_is_refused_before_it_is_stored(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        CompiledPrompt(source)
    assert caught.value.code == "invalid_prompt_template"


@pytest.mark.parametrize("attribute", ["__class__", "upper", "format", "__init__.__globals__", "mro"])
def test_attributes_are_fields_of_objects_and_nothing_of_python(attribute: str) -> None:
    prompt = CompiledPrompt("{{ x." + attribute + " }}")
    for value in ("text", 1, ["a"], {"a": 1}, None):
        with pytest.raises(BadRequest) as caught:
            prompt.render({"x": value})
        assert caught.value.code == "invalid_prompt_variables"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}", ["a"] * 1000),
        ("{% for a in x %}{% if y|upper == y|lower %}{% endif %}{% endfor %}" * 20, ["a"] * 1000),
        ("{% for a in x %}{{ y }}{% endfor %}", ["a"] * 1000),
        ("{{ y|tojson }}" * 400, []),
    ],
)
def test_a_rendering_that_does_not_end_soon_is_ended(source: str, value: list[Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        CompiledPrompt(source).render(
            {"x": value, "y": "a" * 20_000 if "y|" not in source or "upper" in source else [1]}
        )
    assert caught.value.code == "prompt_too_large"


def test_the_output_is_bounded_to_the_character() -> None:
    prompt = CompiledPrompt("{{ x }}")
    assert len(prompt.render({"x": "a" * MAX_OUTPUT_CHARS})) == MAX_OUTPUT_CHARS
    with pytest.raises(BadRequest):
        prompt.render({"x": "a" * (MAX_OUTPUT_CHARS + 1)})


def test_variables_are_all_of_the_templates_and_no_other() -> None:
    wanted = frozenset({"a", "b"})
    assert check_variables({"a": 1}, wanted, {"b": 2}) == {"a": 1, "b": 2}
    assert check_variables({"a": 1, "b": 3}, wanted, {"b": 2}) == {"a": 1, "b": 3}
    for given_values, param in (({"a": 1}, "b"), ({"a": 1, "b": 2, "c": 3}, "c"), ({}, "a")):
        with pytest.raises(BadRequest) as caught:
            check_variables(given_values, wanted, {})
        assert (caught.value.code, caught.value.param) == ("invalid_prompt_variables", f"prompt.variables.{param}")
    with pytest.raises(BadRequest) as caught:
        check_variables({"a": "x" * MAX_VARIABLE_CHARS, "b": 1}, wanted, {})
    assert caught.value.code == "prompt_too_large"
    with pytest.raises(BadRequest):
        check_defaults({"c": 1}, wanted)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, VALUES, VALUES)
def test_any_variables_are_rendered_or_refused(name: Any, order: Any, tags: Any) -> None:
    with suppress(BadRequest):
        CompiledPrompt(ORDER).render({"name": name, "order": order, "tags": tags})
