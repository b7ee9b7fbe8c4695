"""Every row of the limits table: its ends, what lies outside of them, and what is no number."""

from __future__ import annotations

import math

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.limits import LIMITS, check_logit_bias, check_number, check_token_ids

ROWS = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 1048576),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "max_tokens": (1, 1048576),
    "min_tokens": (0, 1048576),
    "n": (1, 16),
    "num_logprobs": (0, 20),
    "num_prompt_logprobs": (0, 20),
    "seed": (-9223372036854775808, 9223372036854775807),
    "dimensions": (1, 1048576),
    "truncate_prompt_tokens": (-1, 1048576),
}
INTEGERS = {
    "top_k",
    "max_tokens",
    "min_tokens",
    "n",
    "num_logprobs",
    "num_prompt_logprobs",
    "seed",
    "dimensions",
    "truncate_prompt_tokens",
}


def test_the_table_is_the_published_one() -> None:
    assert {name: (limit.minimum, limit.maximum) for name, limit in LIMITS.items()} == ROWS
    assert {name for name, limit in LIMITS.items() if limit.is_integer} == INTEGERS
    assert {name for name, limit in LIMITS.items() if limit.excludes_minimum} == {"top_p"}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_the_ends_belong_to_the_range_and_the_next_values_do_not(name: str) -> None:
    limit = LIMITS[name]
    step = 1 if limit.is_integer else 1e-6
    lowest = limit.minimum + step if limit.excludes_minimum else limit.minimum
    for value in (lowest, limit.maximum):
        assert check_number(name, value) == value
    for value in (lowest - step, limit.maximum + step):
        with pytest.raises(BadRequest, match=rf"{name} must be in [\[(]") as caught:
            check_number(name, value)
        assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(LIMITS))
@pytest.mark.parametrize("value", [None, True, "1", [1], {}, math.nan, math.inf, -math.inf], ids=repr)
def test_what_is_no_finite_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=r"must be (a number|finite)") as caught:
        check_number(name, value, "field")
    assert caught.value.param == "field"


@pytest.mark.parametrize("name", sorted(INTEGERS))
def test_integers_may_be_written_as_floats_and_are_given_as_integers(name: str) -> None:
    value = check_number(name, 2.0)
    assert (value, type(value)) == (2, int)
    with pytest.raises(BadRequest, match="must be an integer"):
        check_number(name, 2.5)


def test_bounds_are_written_as_a_person_writes_them() -> None:
    with pytest.raises(BadRequest, match=r"top_k must be in \[0, 1048576\]"):
        check_number("top_k", -1)
    with pytest.raises(BadRequest, match=r"top_p must be in \(0, 1\]"):
        check_number("top_p", 0)


@pytest.mark.parametrize("value", [-(2.0**63), 2.0**62, -(2.0**53), 2.0**53])
def test_a_seed_that_json_could_not_hold_is_not_rounded_to_another(value: float) -> None:
    with pytest.raises(BadRequest, match="seed is not exact") as caught:
        check_number("seed", value)
    assert caught.value.param == "seed"
    assert check_number("seed", int(value)) == value


@pytest.mark.parametrize(
    ("bias", "named"), [({"abc": 1}, "'abc'"), ({"9": 1}, "'9'"), ({"5": "x"}, "['5']"), ({"5": 101}, "['5']")]
)
def test_errors_of_logit_bias_name_the_key(bias: dict[str, object], named: str) -> None:
    with pytest.raises(BadRequest, match="logit_bias") as caught:
        check_logit_bias(bias, 9)
    assert named in str(caught.value)
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([5, 4096, -1], ", and 4096 is out of vocabulary"),
        ([-1], ", and -1 is out of vocabulary"),
        ([5, True], ""),
        ([10**5000], ""),  # as text it would be refused by Python itself
    ],
)
def test_the_first_id_that_no_token_has_is_named(ids: list[object], told: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_token_ids(ids, 4096, "prompt")
    assert str(caught.value) == f"prompt must hold token ids in [0, 4096){told}"
