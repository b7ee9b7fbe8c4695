"""The host tier over the fake runner: tokens stay right when blocks are swapped, kept, loaded or fail."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_cache.swap_costs import SwapCosts
from stratos.engine.settings import SchedulerConfig
from tests.support.crowded_machine import CrowdedMachine
from tests.support.examples import examples
from tests.support.worlds.engine_driver import (
    CROWDED,
    assert_at_rest,
    drained_tokens,
    expected,
    make_request,
    prompt_hashes,
)
from tests.support.worlds.engine_settings import scheduler_config

ALWAYS = scheduler_config(swap_costs=False, **CROWDED)


def crowd(engine, count=4, n=1):
    prompts = {f"r{i}": [i * 5 + j for j in range(6)] for i in range(count)}
    for arrival, (name, prompt) in enumerate(prompts.items()):
        engine.add(make_request(prompt, name, n, max_tokens=16, arrival_s=arrival))
    return prompts


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_swapped_sequences_go_on_with_their_own_kv(make_engine, sharing, n):
    config = scheduler_config(swap_costs=False, prefix_cache=sharing, **CROWDED)
    engine = make_engine(config, num_blocks=8, block_size=4, num_host_blocks=32)
    prompts = crowd(engine, n=n)
    tokens = drained_tokens(engine)
    assert tokens == {(name, i): expected(prompt, 16) for name, prompt in prompts.items() for i in range(n)}
    host = engine.status().host
    assert host.num_swapped_out > 0
    assert host.num_restored == host.num_swapped_out
    assert_at_rest(engine)


def test_nothing_of_a_swapped_sequence_is_computed_again(make_engine):
    engine = make_engine(
        scheduler_config(swap_costs=False, prefix_cache=False, **CROWDED),
        num_blocks=8, block_size=4, num_host_blocks=32,
    )  # fmt: skip
    crowd(engine, count=3)
    rows = []
    launch = engine.runner.launch
    engine.runner.launch = lambda plan: rows.extend(plan.rows) or launch(plan)
    drained_tokens(engine)
    assert engine.status().num_preemptions == engine.status().host.num_swapped_out > 0
    assert sum(len(row.token_ids) for row in rows if not row.continues) <= 3 * (6 + 15)
    assert max(len(row.token_ids) for row in rows[8:]) <= 6


@pytest.mark.parametrize("switch", ["host_tier", "slots"])
def test_without_the_tier_tokens_are_computed_again(make_engine, switch):
    config = scheduler_config(swap_costs=False, host_tier=switch != "host_tier", **CROWDED)
    engine = make_engine(config, num_blocks=8, block_size=4, num_host_blocks=0 if switch == "slots" else 32)
    prompts = crowd(engine)
    assert drained_tokens(engine) == {(name, 0): expected(prompt, 16) for name, prompt in prompts.items()}
    assert engine.status().num_preemptions > engine.status().host.num_swapped_out == 0


def test_measured_costs_decide(make_engine, monkeypatch):
    rates = {"bytes_per_s": 1.0, "tokens_per_s": 1e9}
    for name in rates:
        measured = property(lambda _, name=name: rates[name], lambda _, value: None)
        monkeypatch.setattr(SwapCosts, name, measured)

    engine = make_engine(SchedulerConfig(**CROWDED), num_blocks=8, block_size=4, num_host_blocks=32)
    crowd(engine)
    drained_tokens(engine)
    assert engine.status().num_preemptions > engine.status().host.num_swapped_out == 0
    rates.update(bytes_per_s=1e12, tokens_per_s=1e-3)
    crowd(engine)
    drained_tokens(engine)
    assert engine.status().host.num_swapped_out > 0


def fill_with_others(engine, count=6):
    for i in range(count):
        engine.add(make_request([1000 + 100 * i + j for j in range(20)], f"other{i}", max_tokens=2))
        drained_tokens(engine)


def test_an_evicted_prefix_is_loaded_back(make_engine, overlap):
    engine = make_engine(ALWAYS, num_blocks=8, block_size=4, num_host_blocks=64)
    prompt = list(range(21))
    engine.add(make_request(prompt, "a", max_tokens=3))
    drained_tokens(engine)
    fill_with_others(engine)
    cached = engine.inspect().cached_blocks
    on_device = len(list(itertools.takewhile(cached.__contains__, prompt_hashes(engine, prompt))))
    assert on_device == 0 if not overlap else on_device < 5
    before = engine.status().host.num_blocks_in
    engine.add(make_request(prompt, "b", max_tokens=3))
    stats, tokens = [], []
    while engine.has_work:
        result = engine.step()
        engine.verify()
        stats.extend(result.started_stats.values())
        tokens += [t for output in result.outputs for t in output.token_ids]
    assert tokens == expected(prompt, 3)
    num_cached = stats[0].num_cached_tokens
    assert num_cached + stats[0].num_recomputed_tokens == 21
    assert num_cached == 20 if not overlap else num_cached >= 8, "with overlap blocks are copied ahead, not all in time"
    assert engine.status().host.num_blocks_in - before == num_cached // 4 - on_device > 0
    assert_at_rest(engine)


def test_forgotten_names_are_forgotten_in_both_tiers(make_engine):
    engine = make_engine(ALWAYS, num_blocks=8, block_size=4, num_host_blocks=64)
    prompt = list(range(21))
    engine.add(make_request(prompt, "a", max_tokens=3))
    drained_tokens(engine)
    fill_with_others(engine)
    hashes = prompt_hashes(engine, prompt)
    assert engine.forget_blocks(hashes) > 0
    assert engine.forget_blocks(hashes) == 0
    engine.add(make_request(prompt, "b", max_tokens=3))
    assert drained_tokens(engine) == {("b", 0): expected(prompt, 3)}


def test_a_hand_off_starts_from_what_the_host_holds():
    engine = EngineCore(FakeRunner(FakeConfig(num_blocks=8, block_size=4, num_host_blocks=64)), ALWAYS)
    prompt = list(range(24))
    engine.add(make_request(prompt[:21], "a", max_tokens=3))
    drained_tokens(engine)
    fill_with_others(engine)
    assert engine.match(tuple(prompt), "", b"") == 20
    request = make_request(prompt, "b", max_tokens=3)
    reservation = engine.reserve(request)
    assert reservation.num_skip_tokens == 20
    source = EngineCore(FakeRunner(FakeConfig(worker_weight=5)), SchedulerConfig())
    source.add_prefill(PrefillJob(leg="leg", token_ids=tuple(prompt[:-1])))
    source.step()
    source.grant("leg")
    while source.has_work:
        source.step()
    engine.scatter(request.key, KvRange(20, 23, 0, 1), source.gather("leg", KvRange(20, 23, 0, 1)))
    engine.commit(request.key)
    right = [1 * (t + 1) + p if p < 20 or p == 23 else 5 * (t + 1) + p for p, t in enumerate(prompt)]
    assert drained_tokens(engine)["b", 0][0] == (sum(right) + 31) % 4096
    assert_at_rest(engine)


def test_a_dropped_reservation_leaves_what_it_was_loading(make_engine):
    engine = make_engine(ALWAYS, num_blocks=8, block_size=4, num_host_blocks=64)
    prompt = list(range(21))
    engine.add(make_request(prompt, "a", max_tokens=3))
    drained_tokens(engine)
    fill_with_others(engine)
    request = make_request(prompt, "b", max_tokens=16)
    engine.reserve(request)
    engine.abort(request.key)
    engine.verify()
    drained_tokens(engine)
    assert_at_rest(engine)
    engine.add(make_request(prompt, "c", max_tokens=3))
    assert drained_tokens(engine) == {("c", 0): expected(prompt, 3)}


def test_a_job_reads_loaded_blocks_only_when_they_are_there(make_engine):
    engine = make_engine(ALWAYS, num_blocks=8, block_size=4, num_host_blocks=64, worker_weight=3)
    prompt = list(range(20))
    engine.add(make_request([*prompt, 7], "a", max_tokens=3))
    drained_tokens(engine)
    fill_with_others(engine)
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(prompt)))
    events = []
    while not any(event.kind is PrefillEventKind.DONE for event in events):
        new = engine.step().prefill_events
        engine.verify()
        if new and new[0].kind is PrefillEventKind.READY:
            ready = new[0].num_tokens
            payload = engine.gather("leg", KvRange(0, ready, 0, 1)).cast("q") if ready else []
            assert list(payload) == [3 * (t + 1) + t for t in prompt[:ready]]
            engine.grant("leg")
        events += new
    assert list(engine.gather("leg", KvRange(0, 20, 0, 1)).cast("q")) == [3 * (t + 1) + t for t in prompt]


class Broken(FakeRunner):
    """Raises when it is told to: before or after a plan did its work, or when it is collected."""

    broken = ""

    def launch(self, plan):
        where, self.broken = self.broken, ""
        if where == "before":
            raise RuntimeError(where)
        handle = super().launch(plan)
        if where == "after":
            raise RuntimeError(where)
        self.broken = where
        return handle

    def collect(self, handle):
        where, self.broken = self.broken, ""
        tokens = super().collect(handle)
        if where == "collect":
            raise RuntimeError(where)
        return tokens


class HostTierMachine(CrowdedMachine):
    """Requests with common prefixes crowd two small tiers, are aborted in any phase, and plans fail."""

    @initialize(
        budget=st.sampled_from([3, 64]),
        num_blocks=st.sampled_from([8, 14]),
        num_host_blocks=st.sampled_from([2, 9, 60]),
        sharing=st.booleans(),
    )
    def start(self, budget, num_blocks, num_host_blocks, sharing):
        fake = FakeConfig(num_blocks=num_blocks, block_size=4, num_host_blocks=num_host_blocks, overlap=self.overlap)
        self.runner = Broken(fake)
        self.engine = EngineCore(
            self.runner,
            scheduler_config(
                max_num_batched_tokens=budget,
                max_num_seqs=4,
                swap_costs=False,
                prefix_cache=sharing,
                **CROWDED,
            ),
        )

    @rule(kind=st.integers(0, 2), length=st.integers(1, 18), n=st.integers(1, 2), max_tokens=st.integers(1, 9))
    def add(self, kind, length, n, max_tokens):
        self.come(kind, length, n, max_tokens)

    @rule(where=st.sampled_from(["", "", "", "before", "after", "collect"]))
    def step(self, where):
        self.runner.broken = where
        self.advance()
        self.runner.broken = ""

    def may_end(self, request, num_tokens):
        is_full = self.engine.info.num_blocks * 4 <= len(request.prompt_ids) + num_tokens + 4
        return is_full or super().may_end(request, num_tokens)

    @rule()
    def steps(self):
        for _ in range(6):
            self.advance()


class OverlappingHostTierMachine(HostTierMachine):
    overlap = True


TestHostTier = HostTierMachine.TestCase
TestHostTier.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestOverlappingHostTier = OverlappingHostTierMachine.TestCase
TestOverlappingHostTier.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
