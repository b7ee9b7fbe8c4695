"""Prefill jobs that compute nothing, and those whose grant is late."""

import pytest

from stratos.common.errors import Busy, Overloaded
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import drain, make_request


def test_job_without_compute_sends_only_what_is_cached(make_engine):
    engine = make_engine()
    engine.add(make_request(range(40)))
    drain(engine)
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(50)), compute=False))
    (ready,) = engine.step().prefill_events
    engine.grant("leg")
    (done,) = engine.step().prefill_events
    assert (ready.num_tokens, done.num_tokens, done.kind) == (32, 32, PrefillEventKind.DONE)


def test_an_engine_that_has_to_tell_of_a_job_does_not_sleep_before(make_engine):
    """The step that tells it would plan over pages that are gone."""
    engine = make_engine()
    engine.add_prefill(PrefillJob(leg="leg", token_ids=(1,), compute=False))
    engine.release_prefill("leg")
    with pytest.raises(Busy):
        engine.sleep()
    assert engine.step().prefill_events
    assert engine.sleep() > 0


def test_job_without_compute_needs_no_queue_no_seat_and_no_room(make_engine):
    engine = make_engine(SchedulerConfig(max_num_seqs=1, max_num_waiting=1), num_blocks=10)
    engine.add(make_request(range(40), "cached", max_tokens=1))
    drain(engine)
    engine.add(make_request(range(500, 570), "runs", max_tokens=40))
    engine.step()
    engine.add(make_request(range(700, 710), "waits"))
    assert engine.status().num_free_batch_slots == 0
    with pytest.raises(Overloaded):
        engine.add_prefill(PrefillJob(leg="computes", token_ids=tuple(range(40))))
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(40)), compute=False))
    (ready,) = engine.step().prefill_events
    engine.grant("leg")
    (done,) = engine.step().prefill_events
    assert (ready.num_tokens, done.kind) == (32, PrefillEventKind.DONE)
    assert len(engine.gather("leg", KvRange(0, 32, 0, 1))) == 8 * 32
    engine.release_prefill("leg")
    while engine.has_work:
        engine.step()
    engine.verify()
    assert engine.status().blocks.allocated == 0


def test_a_parked_job_gives_its_blocks_to_others_and_runs_after_its_grant(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=64), num_blocks=20, worker_weight=5)
    engine.add_prefill(PrefillJob(leg="late", token_ids=tuple(range(200)), receiver="a"))
    assert engine.step().prefill_events[0].kind is PrefillEventKind.READY
    engine.add(make_request(range(300, 500), "other", max_tokens=1))
    assert not engine.step().outputs, "the late job holds the pool: nothing is shown"
    engine.park("late")
    assert list(drain(engine).tokens) == [("other", 0)]
    assert [s.queue for s in engine.inspect().sequences] == ["parked"]
    engine.grant("late")
    events = [event for _ in range(9) for event in engine.step().prefill_events]
    assert [events[0].kind, events[-1].kind] == [PrefillEventKind.READY, PrefillEventKind.DONE]
    assert events[-1].num_tokens == 200
    engine.release_prefill("late")
    engine.verify()
    assert engine.status().blocks.allocated == 0


def test_a_parked_job_can_end_before_its_grant(make_engine):
    engine = make_engine()
    engine.add_prefill(PrefillJob(leg="late", token_ids=tuple(range(40))))
    engine.step()
    engine.park("late")
    engine.park("late")
    engine.park("unknown")
    engine.release_prefill("late")
    assert not engine.inspect().sequences
    assert engine.status().blocks.allocated == 0
