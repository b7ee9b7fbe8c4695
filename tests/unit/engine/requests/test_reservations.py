"""Hand-offs at the receiver that are not committed: what is counted for them, and what stays when they fail."""

import pytest

from stratos.common.errors import Busy
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, PrefillJob
from stratos.engine.fake.runner import fake_generate
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import assert_at_rest, drain, make_request


def half_received(make_engine, **settings):
    """A target that has 40 of the 59 tokens that its source computed, and the request."""
    source, target = make_engine(worker_weight=5), make_engine(worker_weight=2, **settings)
    request = make_request(range(60), n=2)
    source.add_prefill(PrefillJob(leg="leg", token_ids=request.prompt_ids[:-1]))
    source.step()
    target.reserve(request)
    source.grant("leg")
    while source.has_work:
        source.step()
    came = KvRange(0, 40, 0, 1)
    target.scatter(request.key, came, source.gather("leg", came))
    return target, request


def test_behind_what_came_of_a_lost_hand_off_the_request_goes_on_at_once(make_engine):
    target, request = half_received(make_engine)
    assert target.commit_part(request.key, 40)
    assert not target.commit_part(request.key, 40), "the reservation has ended"
    target.verify()
    status = target.status()
    assert (status.blocks.reserved, status.blocks.allocated) == (0, 4), "in the blocks that it had"
    assert (status.num_running, status.num_waiting) == (1, 0), "not behind those that wait"
    assert target.match(request.prompt_ids, "", b"") == 32, "what is full is found by others"
    assert target.match(request.prompt_ids, "", b"another tenant") == 0
    run = drain(target)
    right = fake_generate(request.prompt_ids, 8, prefill_weight=5, decode_weight=2, num_prefilled=40)
    assert run.tokens == {("r", 0): right, ("r", 1): right}
    (stats,) = run.stats.values()
    assert (stats.num_cached_tokens, stats.num_transferred_tokens, stats.num_recomputed_tokens) == (0, 40, 20)
    assert_at_rest(target)


def test_blocks_that_a_scatter_still_writes_are_not_computed_in(make_engine, monkeypatch):
    engine = make_engine()
    request = make_request(range(60))
    engine.reserve(request)

    def lose_the_source(*_):
        assert not engine.commit_part(request.key, 40)
        assert engine.status().blocks.fenced == 4
        assert engine.match(request.prompt_ids, "", b"") == 0

    monkeypatch.setattr(engine.runner, "scatter", lose_the_source)
    engine.scatter(request.key, KvRange(40, 59, 0, 1), memoryview(bytes(8 * 19)))
    assert_at_rest(engine)


def test_pages_that_a_scatter_still_writes_are_not_given_back_for_a_sleep(make_engine, monkeypatch):
    engine = make_engine()
    request = make_request(range(60))
    engine.reserve(request)

    def end_the_request(*_):
        engine.abort(request.key)
        with pytest.raises(Busy):
            engine.sleep()

    monkeypatch.setattr(engine.runner, "scatter", end_the_request)
    engine.scatter(request.key, KvRange(40, 59, 0, 1), memoryview(bytes(8 * 19)))
    assert engine.sleep() > 0


def test_a_hand_off_counts_what_its_choices_emitted_elsewhere(make_engine):
    choices = tuple(ChoiceState(index=i, emitted_ids=tuple(range(20))) for i in range(2))
    moved = make_request(range(5), "moved", choices=choices, max_tokens=40)
    full = make_engine(SchedulerConfig(), num_blocks=20, block_size=4)
    assert full.reserve(make_request(range(33), "first", max_tokens=4)) is not None
    assert full.reserve(moved) is None, "1 of the prompt, 5 of each tail and 1 of each output are more than 12"
    engine = make_engine(SchedulerConfig(), num_blocks=21, block_size=4)
    engine.reserve(make_request(range(33), "first", max_tokens=4))
    before = engine.status().num_promised_blocks
    assert engine.reserve(moved) is not None
    assert engine.status().num_promised_blocks - before == 12
    engine.commit(moved.key)
    assert engine.status().num_promised_blocks - before == 12, "the choices took their parts along"
    engine.abort(moved.key)
    engine.reserve(moved)
    engine.abort(moved.key, (1,))
    assert engine.status().num_promised_blocks - before == 6
    engine.abort(moved.key)
    assert engine.status().num_promised_blocks == before
    engine.verify()
