"""Blocks that no token sees again are given up while a sequence runs; nothing else changes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stratos.common.errors import ContextLengthExceeded
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, PrefillJob
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.kv_cache.prefix_cache import PrefixCache
from stratos.engine.kv_cache.window import KvWindow
from stratos.engine.settings import SchedulerConfig
from tests.support.crowded_machine import CrowdedMachine
from tests.support.examples import examples
from tests.support.worlds.engine_driver import CROWDED, Run, drain, expected, make_request, prompt_hashes
from tests.support.worlds.engine_settings import scheduler_config


@pytest.mark.parametrize("position", range(60))
@pytest.mark.parametrize("num_sinks", [0, 1, 4, 6])
def test_first_block_by_counting(position, num_sinks):
    window = KvWindow(size=9, num_sinks=num_sinks, block_size=4, max_step_tokens=8)
    seen = {p // 4 for later in range(position, position + 9) for p in range(max(0, later - 8), later + 1)}
    behind = [block for block in sorted(seen) if block >= window.num_head_blocks]
    assert window.first_block(position) == (behind[0] if behind else window.num_head_blocks)


@pytest.mark.parametrize("num_sinks", [0, 3])
def test_a_long_generation_holds_a_bounded_number_of_blocks(make_engine, num_sinks):
    engine = make_engine(
        SchedulerConfig(max_num_batched_tokens=8), num_blocks=12, block_size=4, window=10, num_sinks=num_sinks
    )
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    engine.add(make_request(prompt, "r", max_tokens=300))
    run = drain(engine)
    assert not run.errors
    assert run.tokens == {("r", 0): expected(prompt, 300, window=10, num_sinks=num_sinks)}
    bound = engine.inspect().max_window_blocks
    assert run.max_allocated <= bound < 10, "311 tokens are 78 blocks"


def test_the_switch_keeps_every_block(make_engine):
    engine = make_engine(scheduler_config(window_release=False), num_blocks=32, block_size=4, window=10)
    engine.add(make_request([7] * 5, "r", max_tokens=90))
    run = drain(engine)
    assert not run.errors
    assert run.tokens == {("r", 0): expected([7] * 5, 90, window=10)}
    assert run.max_allocated == 24


def test_a_long_prompt_is_released_chunk_by_chunk(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=8), num_blocks=64, block_size=4, window=10)
    prompt = [i * i % 101 for i in range(200)]
    engine.add(make_request(prompt, "r", n=2, max_tokens=20))
    run = drain(engine)
    assert not run.errors
    assert run.tokens == {("r", i): expected(prompt, 20, window=10) for i in range(2)}
    assert run.max_allocated <= 2 * engine.inspect().max_window_blocks


def test_released_blocks_stay_in_the_prefix_cache(make_engine):
    engine = make_engine(SchedulerConfig(), num_blocks=40, block_size=4, window=10)
    prompt = [i * 7 % 89 for i in range(41)]
    engine.add(make_request(prompt, "first", max_tokens=60))
    drain(engine)
    assert engine.match(tuple(prompt), "", b"") == 40, "blocks that left the window are found by hash"
    longer = [*prompt, 5, 6, 7]
    engine.add(make_request(longer, "second", max_tokens=5))
    run = drain(engine)
    assert run.tokens["second", 0] == expected(longer, 5, window=10)
    assert run.stats["second"].num_cached_tokens == 40


def test_a_prefix_counts_as_cached_when_its_window_is(make_engine):
    engine = make_engine(SchedulerConfig(), num_blocks=40, block_size=4, window=10)
    prompt = [i * 7 % 89 for i in range(41)]
    engine.add(make_request(prompt, "first", max_tokens=2))
    drain(engine)
    hashes = prompt_hashes(engine, prompt)
    assert engine.forget_blocks(hashes[:5]) == 5
    engine.add(make_request(prompt, "second", max_tokens=9))
    run = Run(engine)
    for _ in range(4):
        run.step()
        if run.stats:
            break
    assert run.stats["second"].num_cached_tokens == 40
    run.max_allocated = 0
    run.drain()
    assert run.tokens["second", 0] == expected(prompt, 9, window=10)
    assert run.max_allocated < 6


@pytest.mark.parametrize("num_sinks", [0, 3, 6])
@pytest.mark.parametrize("num_cached", [0, 1, 2, 13, 22])
def test_a_long_prefix_of_both_tiers_costs_sinks_and_a_window(make_engine, num_cached, num_sinks):
    """25 blocks of a prompt, of which the device has the first few and the host all: a table holds those still seen."""
    config = scheduler_config(max_num_batched_tokens=8, swap_costs=False)
    sizes = {"num_blocks": 40, "num_host_blocks": 200, "block_size": 4, "window": 10, "num_sinks": num_sinks}
    engine = make_engine(config, **sizes)
    for kind in range(3):
        prompt = [(i * 7 + 31 * kind) % 89 for i in range(101)]
        engine.add(make_request(prompt, f"r{kind}", max_tokens=1))
        drain(engine)
    prompt = [i * 7 % 89 for i in range(101)]
    engine.add(make_request(prompt[: 4 * num_cached + 1], "some", max_tokens=1))
    drain(engine)
    engine.add(make_request(prompt, "again", max_tokens=60))
    run = drain(engine)
    assert run.stats["again"].num_cached_tokens == 100
    assert run.tokens["again", 0] == expected(prompt, 60, window=10, num_sinks=num_sinks)
    assert run.max_allocated < 16, "copies to host memory hold some, and the prompt alone has 26"


@pytest.mark.parametrize("length", [6, 22])
@pytest.mark.parametrize("num_sinks", [0, 3])
def test_choices_that_go_on_behind_a_window_take_no_released_block_of_their_prompt(make_engine, length, num_sinks):
    """The first choice finds what it emitted in the cache, and starts without the blocks of the prompt."""
    model = {"window": 10, "num_sinks": num_sinks}
    engine = make_engine(SchedulerConfig(), num_blocks=128, block_size=4, **model)
    prompt = [i * 7 % 89 for i in range(length)]
    engine.add(make_request(prompt, "first", max_tokens=50))
    emitted = drain(engine).tokens["first", 0][:40]
    choices = [ChoiceState(index=i, emitted_ids=tuple(emitted)) for i in range(2)]
    engine.add(make_request(prompt, "again", choices=choices, max_tokens=60))
    found: dict[int, list[int]] = {0: [], 1: []}
    while engine.has_work:
        result = engine.step()
        engine.verify()
        assert not result.errors
        for output in result.outputs:
            found[output.index] += output.token_ids
    assert found == dict.fromkeys(range(2), expected(prompt, 60, **model)[40:])


def test_what_was_emitted_elsewhere_is_refused_where_window_and_step_are_more_than_the_pool(make_engine):
    """It would wait for ever, the first of the queue, and all others behind it: resumed requests have no deadline."""
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=64), num_blocks=14, block_size=4, window=5)
    prompt = [i * 7 % 89 for i in range(24)]
    whole = expected(prompt, 44, window=5)
    with pytest.raises(ContextLengthExceeded, match="64 tokens do not fit the KV pool of 56"):
        engine.add(make_request(prompt, choices=[ChoiceState(index=0, emitted_ids=tuple(whole[:40]))], max_tokens=44))
    engine.add(make_request(prompt, choices=[ChoiceState(index=0, emitted_ids=tuple(whole[:32]))], max_tokens=44))
    found: list[int] = []
    while engine.has_work:
        found += [token for output in engine.step().outputs for token in output.token_ids]
    assert found == whole[32:], "what fits goes on, and further than the pool is large"


def test_match_end_by_trying_every_end():
    hashes = [bytes([i]) for i in range(12)]
    window = KvWindow(size=7, num_sinks=0, block_size=4, max_step_tokens=4)
    for pattern in range(0, 1 << 12, 3):
        cache = PrefixCache()
        known = [i for i in range(12) if pattern >> i & 1]
        for i in known:
            cache.insert(hashes[i], i)
        right = max(end for end in range(13) if set(range(window.needed(end), end)) <= set(known))
        assert cache.match_end(hashes, window.needed) == (right, list(range(window.needed(right), right)))


def test_jobs_keep_all_their_blocks(make_engine):
    engine = make_engine(num_blocks=40, block_size=4, window=10)
    prompt = list(range(60))
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(prompt)))
    engine.step()
    engine.grant("leg")
    while engine.has_work:
        engine.step()
    assert list(engine.gather("leg", KvRange(0, 60, 0, 1)).cast("q")) == [t + 1 + p for p, t in enumerate(prompt)]


class WindowMachine(CrowdedMachine):
    """Requests crowd a small pool, and a host tier, of a model with a window; some are aborted."""

    @initialize(
        window=st.sampled_from([1, 5, 8, 13]),
        num_sinks=st.sampled_from([0, 0, 2, 4]),
        num_host_blocks=st.sampled_from([0, 5, 60]),
        budget=st.sampled_from([3, 9]),
    )
    def start(self, window, num_sinks, num_host_blocks, budget):
        self.model = {"window": window, "num_sinks": num_sinks}
        fake = FakeConfig(
            num_blocks=13, block_size=4, window=window, num_sinks=num_sinks, num_host_blocks=num_host_blocks,
            overlap=self.overlap,
        )  # fmt: skip
        config = scheduler_config(max_num_batched_tokens=budget, max_num_seqs=4, swap_costs=False, **CROWDED)
        self.engine = EngineCore(FakeRunner(fake), config)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 30), n=st.integers(1, 2), max_tokens=st.integers(1, 40))
    def add(self, kind, length, n, max_tokens):
        self.come(kind, length, n, max_tokens)

    @rule()
    def step(self):
        self.advance()

    @rule()
    def steps(self):
        for _ in range(12):
            self.advance()


class OverlappingWindowMachine(WindowMachine):
    overlap = True


TestWindow = WindowMachine.TestCase
TestOverlappingWindow = OverlappingWindowMachine.TestCase
TestWindow.settings = TestOverlappingWindow.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
