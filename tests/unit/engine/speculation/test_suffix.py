"""Drafts from a tenant's earlier requests: its own alone, bounded, and gone with the tenant."""

from __future__ import annotations

from stratos.core.requests.terms import RequestTerms
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.suffix import (
    MAX_PART_TOKENS,
    MAX_TENANTS,
    SuffixProposer,
    TenantTexts,
)
from tests.support.worlds.engine_driver import Run, drain, expected, make_request

TEXT = list(range(100, 140))


def ended(tokens: list[int], tenant: str = "a", salt: bytes = b"") -> Sequence:
    return Sequence(seq_id=0, tokens=tokens, root=b"", terms=RequestTerms(tenant=tenant, cache_salt=salt))


def draft(proposer: SuffixProposer, tokens: list[int], tenant: str = "a", salt: bytes = b"") -> list[int]:
    return list(proposer.propose(ended(tokens, tenant, salt), DraftState(), 4))


def test_what_followed_in_an_earlier_request_is_drafted():
    proposer = SuffixProposer()
    proposer.forget(ended(TEXT))
    assert draft(proposer, [7, *TEXT[10:14]]) == TEXT[14:18]
    assert draft(proposer, [7, *TEXT[10:13]]) == [], "three tokens are too few"
    assert draft(proposer, TEXT[-6:-1]) == TEXT[-1:], "it ends with the request"
    assert draft(proposer, TEXT[-6:]) == []


def test_another_tenant_and_another_salt_get_nothing():
    proposer = SuffixProposer()
    proposer.forget(ended(TEXT, "a", b"1"))
    assert draft(proposer, TEXT[:8], "a", b"1") == TEXT[8:12]
    assert draft(proposer, TEXT[:8], "b", b"1") == []
    assert draft(proposer, TEXT[:8], "a", b"2") == []


def test_the_own_tokens_come_first_and_the_newest_request_before_others():
    proposer = SuffixProposer()
    proposer.forget(ended([*TEXT[:8], 1, 2, 3, 4]))
    proposer.forget(ended([*TEXT[:8], 5, 6, 7, 8]))
    assert draft(proposer, TEXT[:8]) == [5, 6, 7, 8]
    assert draft(proposer, [*TEXT[:8], 9, 9, *TEXT[:8]])[:2] == [9, 9]


def test_a_forgotten_tenant_leaves_nothing_and_others_stay():
    proposer = SuffixProposer()
    for tenant, salt in (("a", b"1"), ("a", b"2"), ("b", b"1")):
        proposer.forget(ended(TEXT, tenant, salt))
    proposer.forget_tenant("a")
    assert proposer.num_tokens == len(TEXT) + 1
    assert draft(proposer, TEXT[:8], "a", b"1") == []
    assert draft(proposer, TEXT[:8], "b", b"1") == TEXT[8:12]


def test_memory_is_bounded():
    texts, proposer = TenantTexts(), SuffixProposer()
    for i in range(30):
        texts.add([i * 5000 + j for j in range(5000)])
    assert texts.num_tokens <= 2 * MAX_PART_TOKENS
    last = 29 * 5000 + 4000
    assert texts.follow(range(last, last + 8), 2) == [last + 8, last + 9]
    assert texts.follow(range(4000, 4008), 2) == []
    for i in range(2 * MAX_TENANTS):
        proposer.forget(ended(TEXT, str(i)))
    assert proposer.num_tokens == MAX_TENANTS * (len(TEXT) + 1)


def test_an_engine_drafts_from_ended_requests_until_the_tenant_is_forgotten():
    config = SchedulerConfig(speculation=SpeculationConfig(method="suffix", is_adaptive=False))
    engine, prompt = EngineCore(FakeRunner(FakeConfig()), config, proposer=SuffixProposer()), [3, 1, 4, 1, 5]
    stream, drafted = expected(prompt, 40), []
    for i, tenant in enumerate(("a", "a", "b", "a")):
        if i == 3:
            engine.forget_tenant("a")
        engine.add(make_request(prompt, f"r{i}", max_tokens=40, tenant=tenant))
        run = drain(engine)
        assert run.tokens[f"r{i}", 0] == stream
        drafted.append(sum(r.num_accepted for r in run.results))
    assert drafted[1] >= 30
    assert (drafted[0], drafted[2], drafted[3]) == (0, 0, 0)


def test_a_stream_that_is_open_when_its_tenant_is_forgotten_leaves_nothing():
    config = SchedulerConfig(speculation=SpeculationConfig(method="suffix", is_adaptive=False))
    proposer, prompt = SuffixProposer(), [3, 1, 4, 1, 5]
    engine = EngineCore(FakeRunner(FakeConfig()), config, proposer=proposer)
    engine.add(make_request(prompt, max_tokens=40, tenant="a"))
    driven = Run(engine)
    for _ in range(4):
        driven.step()
    engine.forget_tenant("a")
    driven.drain()
    assert driven.tokens["r", 0] == expected(prompt, 40)
    engine.add(make_request([1], "other", max_tokens=2, tenant="b"))
    drain(engine)
    assert proposer.num_tokens == 0
