"""KV that is damaged: the request that read it computes all of it again, once, and nobody else notices."""

from __future__ import annotations

import pytest

from stratos.common.errors import Busy, Internal
from stratos.core.kv import KvRange
from stratos.core.requests.embedding import EmbedRequest, PoolingKind
from stratos.core.requests.records import PrefillJob, RequestKey
from stratos.engine.contract.plan import NON_FINITE
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.pooling import fake_embedding
from stratos.engine.fake.runner import FakeConfig, FakeRunner, fake_kv
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drain, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

SIZE = 4
PREFIX = tuple(range(40))
BAD = 1 << 40
"""KV that no token has."""


class BrittleRunner(FakeRunner):
    """A row that reads damaged KV is not finite; with ``is_broken`` every row of that request is."""

    is_broken = False

    def _draw(self, handle):
        super()._draw(handle)
        for row in handle.plan.rows:
            table, end = handle.tables[row.seq_id], row.start + len(row.token_ids)
            is_bad = any(self._pages[self._slot(table, position)] == BAD for position in range(end))
            if is_bad or self.is_broken:
                handle.tokens.errors[row.seq_id] = NON_FINITE
        handle.tokens.tokens = [token for token in handle.tokens.tokens if token.seq_id not in handle.tokens.errors]

    def damage(self, block):
        self._pages[block * SIZE + 1] = BAD


def brittle_engine(overlap):
    runner = BrittleRunner(FakeConfig(overlap=overlap, block_size=SIZE))
    return EngineCore(runner, SchedulerConfig()), runner


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_over_damaged_kv_computes_it_again_and_gives_its_tokens(overlap, n):
    engine, runner = brittle_engine(overlap)
    engine.add(make_request(PREFIX, "first"))
    drain(engine)
    runner.damage(list(engine.inspect().cached_blocks.values())[3])
    engine.add(make_request((*PREFIX, 1), "next", n))
    engine.add(make_request((9, 8, 7), "neighbour"))
    run = drain(engine)
    assert not run.errors
    assert [run.tokens["next", i] for i in range(n)] == [expected((*PREFIX, 1))] * n
    assert run.tokens["neighbour", 0] == expected((9, 8, 7))
    named = [(result.damaged.keys(), hashes) for result in run.results for hashes in result.damaged.values()]
    assert {key for keys, _ in named for key in keys} == {RequestKey("next", 0)}
    assert all(len(hashes) >= len(PREFIX) // SIZE for _, hashes in named)
    assert_at_rest(engine)
    engine.add(make_request((*PREFIX, 2), "later"))
    after = drain(engine)
    assert after.tokens["later", 0] == expected((*PREFIX, 2))
    assert after.stats["later"].num_cached_tokens == len(PREFIX), "of the KV that was computed again"


def test_a_stream_goes_on_after_its_kv_was_damaged(overlap):
    engine, runner = brittle_engine(overlap)
    engine.add(make_request(PREFIX, max_tokens=30))
    run = drain_until(engine, 10)
    runner.damage(next(iter(engine.inspect().sequences)).block_table[2])
    run.drain()
    assert not run.errors
    assert run.tokens["r", 0] == expected(PREFIX, 30)
    assert sum(bool(result.damaged) for result in run.results) == 1
    assert_at_rest(engine)


def drain_until(engine, num_tokens):
    run = Run(engine)
    while len(run.tokens.get(("r", 0), ())) < num_tokens:
        run.step()
    return run


def test_a_row_that_is_never_finite_fails_after_one_more_try(overlap):
    engine, runner = brittle_engine(overlap)
    runner.is_broken = True
    engine.add(make_request((1, 2, 3)))
    run = drain(engine)
    assert isinstance(run.errors["r"], Internal)
    assert sum(bool(result.damaged) for result in run.results) == 1
    assert not run.tokens
    assert_at_rest(engine)


class LeakyRunner(FakeRunner):
    """A bit of what is read from host memory has flipped: of each page, or of one page in a few."""

    one_in, num_read = 1, 0

    def _swap(self, handle):
        for slot, _ in handle.plan.swap_ins:
            self.num_read += 1
            if self.num_read % self.one_in == 0:
                self._host[slot * SIZE + 1] ^= 1 << 17
        super()._swap(handle)


@pytest.mark.parametrize("one_in", [1, 3])
@pytest.mark.parametrize("sharing", [True, False])
def test_a_page_that_changed_in_host_memory_reaches_no_token(overlap, one_in, sharing):
    runner = LeakyRunner(FakeConfig(overlap=overlap, num_blocks=8, block_size=SIZE, num_host_blocks=32))
    runner.one_in = one_in
    engine = EngineCore(runner, scheduler_config(swap_costs=False, prefix_cache=sharing, **CROWDED))
    prompts = {f"r{i}": [i * 5 + j for j in range(6)] for i in range(4)}
    for arrival, (name, prompt) in enumerate(prompts.items()):
        engine.add(make_request(prompt, name, max_tokens=16, arrival_s=arrival))
    run = drain(engine)
    assert not run.errors
    assert run.tokens == {(name, 0): expected(prompt, 16) for name, prompt in prompts.items()}
    assert engine.status().host.num_damaged == runner.num_read // one_in > 0
    assert_at_rest(engine)


NEVER = 1 << 30
PROMPT = tuple(range(24))
"""Its first 20 tokens are in host memory alone (``hosted_engine``)."""


def hosted_engine():
    runner = LeakyRunner(FakeConfig(num_blocks=8, block_size=SIZE, num_host_blocks=64))
    runner.one_in = NEVER
    engine = EngineCore(runner, scheduler_config(swap_costs=False, **CROWDED))
    engine.add(make_request(PROMPT[:21], "first", max_tokens=3))
    drain(engine)
    push_out(engine)
    return engine, runner


def push_out(engine):
    for i in range(6):
        engine.add(make_request(range(1000 + 100 * i, 1020 + 100 * i), f"other{i}", max_tokens=2))
        drain(engine)


def assert_computed_again(engine, runner):
    assert engine.status().host.num_damaged == runner.num_read > 0
    assert_at_rest(engine)
    engine.add(make_request(PROMPT, "again", max_tokens=3))
    run = drain(engine)
    assert run.tokens["again", 0] == expected(PROMPT, 3)
    assert run.stats["again"].num_cached_tokens == 0, "nothing finds what was damaged"


def test_an_input_to_embed_that_began_with_a_page_that_changed_has_its_vector():
    engine, runner = hosted_engine()
    runner.one_in = 1
    key = RequestKey("e", 0)
    engine.add_embedding(EmbedRequest(key=key, token_ids=PROMPT, pooling=PoolingKind.LAST, normalizes=False))
    run = drain(engine)
    assert not run.errors
    kv = [fake_kv(1, token, position) for position, token in enumerate(PROMPT)]
    assert run.vectors["e"] == fake_embedding(kv, PoolingKind.LAST, normalizes=False)
    assert [result.damaged.keys() for result in run.results if result.damaged] == [{key}]
    assert engine.status().host.num_damaged == runner.num_read > 0
    assert_at_rest(engine)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_hand_off_that_began_with_a_page_that_changed_is_not_committed(is_whole):
    engine, runner = hosted_engine()
    request = make_request(PROMPT, max_tokens=3)
    assert engine.reserve(request).num_skip_tokens == 20
    runner.one_in = 1
    drain(engine)
    engine.scatter(request.key, KvRange(20, 23, 0, 1), memoryview(bytes(3 * 8)))
    if is_whole:
        with pytest.raises(Busy, match="was damaged"):
            engine.commit(request.key)
    else:
        assert not engine.commit_part(request.key, 23)
    engine.verify()
    assert_computed_again(engine, runner)


def test_a_job_that_is_done_with_a_page_that_changed_fails():
    engine, runner = hosted_engine()
    engine.add_prefill(PrefillJob(leg="leg", token_ids=PROMPT[:20]))
    run = Run(engine)
    run.step()
    engine.park("leg")
    push_out(engine)
    engine.grant("leg")
    runner.num_read, runner.one_in, num_damaged = 0, 1, engine.status().host.num_damaged
    last = run.step().prefill_events[-1]
    assert (last.kind, last.num_tokens, num_damaged) == (PrefillEventKind.DONE, 20, 0)
    assert isinstance(run.errors["leg"], Internal)
    with pytest.raises(KeyError):
        engine.gather("leg", KvRange(0, 20, 0, 1))
    assert_computed_again(engine, runner)


def test_a_job_that_computes_nothing_and_holds_a_page_that_changed_fails():
    engine, runner = hosted_engine()
    request = make_request(PROMPT, max_tokens=3)
    engine.reserve(request)
    engine.add_prefill(PrefillJob(leg="leg", token_ids=PROMPT, compute=False))
    runner.one_in = 1
    assert isinstance(drain(engine).errors["leg"], Internal)
    engine.abort(request.key)
    assert_computed_again(engine, runner)
