"""Blocks that no token sees again are given up while a sequence runs; nothing else changes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratos.core.request import ChoiceState, EngineRequest, PrefillJob, RequestKey
from stratos.core.sampling_params import SamplingParams
from stratos.engine.core import EngineCore
from stratos.engine.fake import FakeConfig, FakeRunner, fake_generate
from stratos.engine.kv_window import KvWindow
from stratos.engine.prefix_cache import PrefixCache
from stratos.engine.settings import SchedulerConfig

CROWDED = {"admission_mark": 1.0, "admission_counts_budgets": False, "default_output_tokens": 1}


def make_request(prompt, name, n=1, max_tokens=16, arrival=0.0):
    return EngineRequest(
        key=RequestKey(name, 0),
        prompt_ids=tuple(prompt),
        choices=tuple(ChoiceState(index=i) for i in range(n)),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens),
        seed=0,
        arrival_s=arrival,
    )


def drain(engine, limit=3000):
    """Tokens by request and choice, and the most blocks that were ever allocated."""
    tokens, most = {}, 0
    for _ in range(limit):
        if not engine.has_work:
            return tokens, most
        result = engine.step()
        engine.verify()
        assert not result.errors
        most = max(most, engine.status().blocks.allocated)
        for output in result.outputs:
            tokens.setdefault((output.key.request_id, output.index), []).extend(output.token_ids)
    pytest.fail("the engine did not come to rest")


def expected(prompt, num_tokens, window, num_sinks=0):
    return fake_generate(
        prompt, num_tokens, prefill_weight=1, decode_weight=1, window=window, num_sinks=num_sinks
    )  # fmt: skip


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
    tokens, most = drain(engine)
    assert tokens == {("r", 0): expected(prompt, 300, 10, num_sinks)}
    bound = engine._scheduler.tables.window.max_blocks
    assert most <= bound < 10, "311 tokens are 78 blocks"


def test_the_switch_keeps_every_block(make_engine):
    engine = make_engine(SchedulerConfig(enable_window_release=False), num_blocks=32, block_size=4, window=10)
    engine.add(make_request([7] * 5, "r", max_tokens=90))
    tokens, most = drain(engine)
    assert tokens == {("r", 0): expected([7] * 5, 90, 10)}
    assert most == 24


def test_a_long_prompt_is_released_chunk_by_chunk(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=8), num_blocks=64, block_size=4, window=10)
    prompt = [i * i % 101 for i in range(200)]
    engine.add(make_request(prompt, "r", n=2, max_tokens=20))
    tokens, most = drain(engine)
    assert tokens == {("r", i): expected(prompt, 20, 10) for i in range(2)}
    assert most <= 2 * engine._scheduler.tables.window.max_blocks


def test_released_blocks_stay_in_the_prefix_cache(make_engine):
    engine = make_engine(SchedulerConfig(), num_blocks=40, block_size=4, window=10)
    prompt = [i * 7 % 89 for i in range(41)]
    engine.add(make_request(prompt, "first", max_tokens=60))
    drain(engine)
    assert engine.match(tuple(prompt), "", b"") == 40, "blocks that left the window are found by name"
    longer = [*prompt, 5, 6, 7]
    engine.add(make_request(longer, "second", max_tokens=5))
    stats = {}
    tokens = []
    while engine.has_work:
        result = engine.step()
        engine.verify()
        stats.update(result.started_stats)
        tokens += [token for output in result.outputs for token in output.token_ids]
    assert tokens == expected(longer, 5, 10)
    assert next(iter(stats.values())).num_cached_tokens == 40


def test_a_prefix_counts_as_cached_when_its_window_is(make_engine):
    engine = make_engine(SchedulerConfig(), num_blocks=40, block_size=4, window=10)
    prompt = [i * 7 % 89 for i in range(41)]
    engine.add(make_request(prompt, "first", max_tokens=2))
    drain(engine)
    names = engine._context.prompt_names(tuple(prompt), "", b"")
    assert engine.forget_blocks(names[:5]) == 5
    engine.add(make_request(prompt, "second", max_tokens=9))
    result = engine.step()
    for _ in range(3):
        if result.started_stats:
            break
        result = engine.step()
    assert next(iter(result.started_stats.values())).num_cached_tokens == 40
    rest, most = drain(engine)
    first = [token for output in result.outputs for token in output.token_ids]
    assert first + rest["second", 0] == expected(prompt, 9, 10)
    assert most < 6


def test_match_end_by_trying_every_end():
    names = [bytes([i]) for i in range(12)]
    window = KvWindow(size=7, num_sinks=0, block_size=4, max_step_tokens=4)
    for pattern in range(0, 1 << 12, 3):
        cache = PrefixCache()
        known = [i for i in range(12) if pattern >> i & 1]
        for i in known:
            cache.insert(names[i], i)
        right = max(end for end in range(13) if set(range(window.needed(end), end)) <= set(known))
        assert cache.match_end(names, window.needed) == (right, list(range(window.needed(right), right)))


def test_jobs_keep_all_their_blocks(make_engine):
    engine = make_engine(num_blocks=40, block_size=4, window=10)
    prompt = list(range(60))
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(prompt)))
    engine.step()
    engine.grant("leg")
    while engine.has_work:
        engine.step()
    assert list(engine.gather("leg", 0, 60, 0, 1).cast("q")) == [t + 1 + p for p, t in enumerate(prompt)]


class WindowMachine(RuleBasedStateMachine):
    """Requests crowd a small pool, and a host tier, of a model with a window; some are aborted."""

    lag = 0

    @initialize(
        window=st.sampled_from([1, 5, 8, 13]),
        num_sinks=st.sampled_from([0, 0, 2, 4]),
        num_host_blocks=st.sampled_from([0, 5, 60]),
        budget=st.sampled_from([3, 9]),
    )
    def start(self, window, num_sinks, num_host_blocks, budget):
        self.window, self.num_sinks = window, num_sinks
        fake = FakeConfig(
            num_blocks=13, block_size=4, window=window, num_sinks=num_sinks, num_host_blocks=num_host_blocks,
            lag=self.lag,
        )  # fmt: skip
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, enable_swap_costs=False, **CROWDED)
        self.engine, self.requests, self.tokens, self.count = EngineCore(FakeRunner(fake), config), {}, {}, 0

    @rule(kind=st.integers(0, 2), length=st.integers(1, 30), n=st.integers(1, 2), max_tokens=st.integers(1, 40))
    def add(self, kind, length, n, max_tokens):
        self.count += 1
        prompt = [100 * kind + i for i in range(length)]
        request = make_request(prompt, f"r{self.count}", n, max_tokens, arrival=float(self.count))
        self.engine.add(request)
        self.requests[request.key] = request

    @rule()
    def step(self):
        result = self.engine.step()
        assert not result.errors
        for output in result.outputs:
            got = self.tokens.setdefault((output.key, output.index), [])
            assert output.offset == len(got)
            got.extend(output.token_ids)
            request = self.requests[output.key]
            assert got == expected(request.prompt_ids, len(got), self.window, self.num_sinks)
            assert not output.finish_reason or len(got) == request.sampling.max_tokens

    @rule()
    def steps(self):
        for _ in range(12):
            self.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from(sorted(self.requests))))

    @invariant()
    def law(self):
        if hasattr(self, "engine"):
            self.engine.verify()

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine did not come to rest"
        status = self.engine.status()
        assert status.blocks.free + status.blocks.cached == status.blocks.total
        assert status.host.slots.free + status.host.slots.cached == status.host.slots.total


class LaggingWindowMachine(WindowMachine):
    lag = 1


TestWindow = WindowMachine.TestCase
TestLaggingWindow = LaggingWindowMachine.TestCase
TestWindow.settings = TestLaggingWindow.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
