"""The table of convicted prompts: bounded, forgetful, and the same everywhere after exchanges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratos.core.requests.convictions import Conviction, ConvictionConfig, ConvictionTable

CONFIG = ConvictionConfig(ttl_s=600.0, max_per_tenant=3, max_total=5)


def conviction(tenant: str, prompt: str, left_s: float = 600.0) -> Conviction:
    return Conviction(tenant=tenant, prompt_digest=prompt.encode(), left_s=left_s)


def test_a_conviction_holds_for_its_tenant_and_time_alone() -> None:
    table = ConvictionTable(CONFIG)
    assert table.add_all([conviction("a", "p")], 100.0)
    assert table.holds("a", b"p", 699.9)
    assert not table.holds("a", b"p", 700.0)
    assert not table.holds("a", b"q", 100.0)
    assert not table.holds("b", b"p", 100.0)
    table.expire(700.0)
    assert not len(table)


def test_what_is_known_is_not_taken_over_again() -> None:
    table = ConvictionTable(CONFIG)
    assert table.add_all([conviction("a", "p")], 100.0)
    version = table.version
    assert not table.add_all([conviction("a", "p")], 300.0), (
        "it does not travel in circles, nor grow older than its time"
    )
    assert table.version == version
    assert not table.holds("a", b"p", 700.0)
    assert table.add_all([conviction("a", "p")], 700.0), "after its time it can be convicted again"


def test_others_set_no_longer_time_than_the_own_limit() -> None:
    table = ConvictionTable(CONFIG)
    table.add_all([conviction("a", "p", left_s=1e9), conviction("a", "q", left_s=0.0), conviction("a", "r", -1.0)], 0.0)
    assert len(table) == 1
    assert not table.holds("a", b"p", 600.0)


def test_a_tenant_pushes_out_its_own_convictions_alone() -> None:
    table = ConvictionTable(CONFIG)
    table.add_all([conviction("victim", "p")], 0.0)
    table.add_all([conviction("flood", str(number)) for number in range(50)], 0.0)
    assert table.holds("victim", b"p", 0.0)
    assert [table.holds("flood", str(number).encode(), 0.0) for number in range(46, 50)] == [False, True, True, True]
    table.add_all([conviction("third", "p"), conviction("fourth", "p")], 0.0)
    assert len(table) == CONFIG.max_total
    assert table.holds("victim", b"p", 0.0), "the tenant with the most gives way"


def test_a_reader_gets_what_it_has_not_seen_in_order() -> None:
    table = ConvictionTable(CONFIG)
    table.add_all([conviction("a", "p"), conviction("b", "q")], 0.0)
    seen = table.version
    assert [one.prompt_digest for one in table.since(0, 10.0)] == [b"p", b"q"]
    assert table.since(0, 10.0)[0].left_s == 590.0
    assert table.since(seen, 10.0) == ()
    table.add_all([conviction("a", "r")], 10.0)
    assert [one.prompt_digest for one in table.since(seen, 10.0)] == [b"r"]


names = st.sampled_from("abcde")


@given(st.lists(st.tuples(names, st.integers(0, 30), st.integers(0, 700), st.integers(0, 100)), max_size=60))
def test_bounds_hold_and_the_newest_of_a_tenant_is_there(steps: list[tuple[str, int, int, int]]) -> None:
    table, now_s = ConvictionTable(CONFIG), 0.0
    for tenant, prompt, left_s, wait_s in steps:
        now_s += wait_s
        table.add_all([conviction(tenant, str(prompt), left_s)], now_s)
        convictions = table.since(0, now_s)
        assert len(convictions) <= len(table) <= CONFIG.max_total
        assert all(sum(one.tenant == name for one in convictions) <= CONFIG.max_per_tenant for name in "abcde")
        if left_s > 0:
            assert table.holds(tenant, str(prompt).encode(), now_s)
