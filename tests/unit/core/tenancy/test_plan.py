"""Plans: what they say without a record, and what an ACL and a cache policy mean."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratos.core.requests.limits import BATCH_CLASS
from stratos.core.tenancy.patterns import covers, is_allowed
from stratos.core.tenancy.plan import (
    BATCH,
    BUILT_IN_PLANS,
    LOCAL,
    MAX_KEPT_RATIO,
    PREMIUM,
    STANDARD,
    CachePolicy,
    Plan,
    built_in_plan,
    reserved_beside,
)
from stratos.core.tenancy.roles import Role
from stratos.core.tenant import Tenant

GILDED = (("gold", "near"), ("gilt", "far"))


def test_premium_goes_before_standard_and_standard_before_batch() -> None:
    assert PREMIUM.priority_class < STANDARD.priority_class < BATCH.priority_class == BATCH_CLASS
    assert [plan.max_prompt_tokens for plan in BUILT_IN_PLANS.values()] == [4096] * 4
    assert set(BUILT_IN_PLANS) == {"premium", "standard", "batch", "local"}


def test_the_local_plan_has_no_limits_prices_and_promises() -> None:
    assert replace(LOCAL, name="standard") == Plan()
    assert not LOCAL.prices
    assert LOCAL.priority_class == STANDARD.priority_class
    limits = (LOCAL.requests_per_min, LOCAL.tokens_per_min, LOCAL.max_sequences, LOCAL.ttft_ms, LOCAL.itl_ms)
    assert set(limits) == {None}


def test_standard_has_limits_since_version_2() -> None:
    assert (STANDARD.requests_per_min, STANDARD.tokens_per_min) == (60, 100_000)
    first = built_in_plan("standard", 1)
    assert first == Plan(ttft_ms=5000, itl_ms=250)
    assert [built_in_plan(name, 1) for name in ("batch", "none")] == [BATCH, None]
    assert built_in_plan("standard") is STANDARD


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [(("*",), "any", True), (("base",), "base", True), (("base",), "base2", False), (("acme-*",), "acme-1", True),
     (("ACME-*",), "acme-1", False), ((), "base", False), (("a*b*c",), "abc", True), (("a*b*c",), "a-b-b-c", True),
     (("a*b*c",), "acb", False), (("ab*ba",), "aba", False), (("*a", "b*"), "ba", True), (("a**",), "a", True),
     (("*x*x*",), "x", False), (("a?",), "ab", True), (("[ab]*",), "b1", True)],
)  # fmt: skip
def test_an_acl_has_names_and_patterns(patterns: tuple[str, ...], name: str, expected: bool) -> None:
    assert is_allowed(patterns, name) is expected


def test_plan_and_key_must_both_allow_a_model() -> None:
    tenant = Tenant(name="t", plan=replace(STANDARD, models=("a", "b")), models=("b", "c"))
    assert [tenant.may_use(name) for name in "abc"] == [False, True, False]


def salts(policy: CachePolicy) -> list[bytes]:
    plan = replace(STANDARD, cache_policy=policy)
    keys = [Tenant(name="t", cache_salt=b"salt", plan=plan, key_id=key_id) for key_id in ("one", "two")]
    return [key.terms(nonce=b"%d" % number).cache_salt for number, key in enumerate([keys[0]] * 2 + [keys[1]] * 2)]


def test_a_cache_policy_says_between_which_requests_a_prefix_is_shared() -> None:
    assert len(set(salts(CachePolicy.TENANT))) == 1
    one, also_one, two, also_two = salts(CachePolicy.KEY)
    assert one == also_one != two == also_two
    assert len(set(salts(CachePolicy.OFF))) == 4
    others = [*salts(CachePolicy.KEY), *salts(CachePolicy.OFF)]
    assert b"salt" not in others
    other = Tenant(name="u", cache_salt=b"other", plan=replace(STANDARD, cache_policy=CachePolicy.KEY), key_id="one")
    assert other.terms().cache_salt != one


def test_the_plans_share_travels_in_the_terms() -> None:
    terms = Tenant(name="t", plan=PREMIUM).terms()
    assert (terms.priority_class, terms.share.weight) == (PREMIUM.priority_class, PREMIUM.weight)
    assert Tenant(name="t", plan=BATCH).terms().share.max_batch_ratio == BATCH.max_batch_ratio < 1


def test_what_other_plans_reserve_adds_up_by_label() -> None:
    gold, gilt = (Plan(name=name, pools=("fast", label), kv_reserved_ratio=0.5) for name, label in GILDED)
    plans = [gold, gilt, Plan(name="names no worker", kv_reserved_ratio=0.5), Plan(name="first", pools=("fast",))]
    assert reserved_beside("batch", plans) == {"fast": MAX_KEPT_RATIO, "near": 0.5, "far": 0.5}
    assert reserved_beside("gold", plans) == {"fast": 0.5, "far": 0.5}, "its own reserve does not bind it"
    assert reserved_beside("batch", BUILT_IN_PLANS.values()) == {}
    share = Tenant(name="t", plan=gold, kept_kv={"far": 0.5}).terms().share
    assert (share.pools, share.kept_kv) == ({"fast", "near"}, {"far": 0.5})


def test_a_role_includes_the_ones_below_it() -> None:
    assert Role.ADMIN.includes(Role.TENANT_ADMIN)
    assert Role.TENANT_ADMIN.includes(Role.TENANT)
    assert not Role.TENANT_ADMIN.includes(Role.ADMIN)
    assert not Role.TENANT.includes(Role.TENANT_ADMIN)


@pytest.mark.parametrize(
    ("patterns", "others", "expected"),
    [
        (("*",), ("*",), True),
        (("*",), ("base", "a-*"), True),
        (("acme-*",), ("acme-1", "acme-*", "acme-1*2"), True),
        (("acme-*",), ("*",), False),
        (("acme-*",), ("acme-1", "base"), False),
        (("base", "acme-*"), ("base", "acme-x"), True),
        (("?",), ("*",), False),  # one character is not any text
        (("?",), ("a",), False),  # not plain to see
        (("[ab]",), ("[ab]",), True),
        (("base",), (), True),
        ((), ("base",), False),
    ],
)
def test_patterns_cover_those_that_allow_no_more(
    patterns: tuple[str, ...], others: tuple[str, ...], expected: bool
) -> None:
    assert covers(patterns, others) is expected


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_stars_mean_what_they_mean_in_names_of_files(pattern: str, name: str) -> None:
    assert is_allowed((pattern,), name) is fnmatchcase(name, pattern)
