"""The core over the fake runner: every token is checked against arithmetic done apart from the engine."""

import threading

import pytest

from stratos.common.clock import FakeClock
from stratos.common.errors import BadRequest, ContextLengthExceeded, Internal, Overloaded, QueueTimeout
from stratos.core.kv import KvRange
from stratos.core.requests.records import ChoiceState, FinishReason, PrefillJob, RequestKey
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.fake.runner import fake_generate
from stratos.engine.settings import SchedulerConfig
from stratos.engine.slow_steps import SlowSteps
from tests.support.worlds.engine_driver import CROWDED, drain, expected, make_request

PACKED = SchedulerConfig(**CROWDED)


@pytest.mark.parametrize("budget", [1, 7, 16, 512])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_tokens_do_not_depend_on_chunks(make_engine, budget, length):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=budget))
    prompt = list(range(5, 5 + length))
    engine.add(make_request(prompt, max_tokens=20))
    run = drain(engine)
    assert run.tokens["r", 0] == expected(prompt, 20)
    assert run.reasons["r", 0] is FinishReason.LENGTH
    (stats,) = run.stats.values()
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_recomputed_tokens) == (length, 0, length)
    assert engine.status().blocks.allocated == 0


def test_the_worked_example_of_the_fake_runner_holds():
    tokens = fake_generate([5, 7, 9], 2, prefill_weight=2, decode_weight=3, vocab_size=100)
    assert tokens == [(12 + 17 + 32 + 31 * 3) % 100, (12 + 17 + 32 + 168 + 31 * 3) % 100] == [54, 22]


def test_batch_of_many_equals_each_alone(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=6), num_blocks=512)
    prompts = {f"r{i}": [i * 7 + j for j in range(1 + 9 * i)] for i in range(12)}
    for name, prompt in prompts.items():
        engine.add(make_request(prompt, name, max_tokens=11))
    tokens = drain(engine).tokens
    assert tokens == {(name, 0): expected(prompt, 11) for name, prompt in prompts.items()}


def test_preemption_changes_nothing_but_time(make_engine):
    engine = make_engine(PACKED, num_blocks=8, block_size=4)
    prompts = {f"r{i}": [i + j for j in range(6)] for i in range(4)}
    for arrival, (name, prompt) in enumerate(prompts.items()):
        engine.add(make_request(prompt, name, max_tokens=16, arrival_s=arrival))
    tokens = drain(engine).tokens
    assert engine.status().num_preemptions > 0
    assert tokens == {(name, 0): expected(prompt, 16) for name, prompt in prompts.items()}


def test_an_exhausted_pool_ends_with_a_partial_answer(make_engine):
    engine = make_engine(PACKED, num_blocks=4, block_size=4)
    engine.add(make_request([1, 2, 3], max_tokens=1000))
    run = drain(engine)
    assert run.reasons["r", 0] is FinishReason.EXHAUSTED
    assert run.tokens["r", 0] == expected([1, 2, 3], 14)
    assert engine.status().blocks.allocated == 0


def test_prefix_cache_hits_full_blocks_only_and_never_the_last_token(make_engine):
    engine = make_engine()
    prompt = list(range(64))
    engine.add(make_request(prompt, "a"))
    drain(engine)
    assert engine.match(tuple(prompt), "", b"") == 48
    assert engine.match((*prompt, 9), "", b"") == 64
    assert engine.match(tuple(prompt), "", b"salt") == 0
    assert engine.match(tuple(prompt), "adapter", b"") == 0
    engine.add(make_request(prompt, "b"))
    run = drain(engine)
    assert run.tokens["b", 0] == expected(prompt, 8)
    (stats,) = run.stats.values()
    assert (stats.num_cached_tokens, stats.num_recomputed_tokens) == (48, 16)


def test_choices_share_the_prompt_and_go_their_own_way(make_engine):
    engine = make_engine(block_size=4)
    prompt = [3, 1, 4, 1, 5, 9]
    engine.add(make_request(prompt, n=3, max_tokens=10))
    run = drain(engine)
    assert run.tokens == {("r", i): expected(prompt, 10) for i in range(3)}
    (stats,) = run.stats.values()
    assert stats.num_recomputed_tokens == len(prompt)
    assert sum(r.num_rows for r in run.results) == 1 + 2 * 10 + 9


def test_abort_of_the_lead_leaves_the_siblings(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=4))
    prompt = list(range(20))
    engine.add(make_request(prompt, n=3))
    engine.step()
    engine.abort(RequestKey("r", 0), (0,))
    tokens = drain(engine).tokens
    assert tokens == {("r", i): expected(prompt, 8) for i in (1, 2)}


def test_resume_goes_on_with_the_same_tokens(make_engine):
    engine = make_engine()
    prompt, whole = [7, 8, 9], expected([7, 8, 9], 12)
    choices = (
        ChoiceState(index=0, emitted_ids=tuple(whole[:5])),
        ChoiceState(index=1, finished=True),
        ChoiceState(index=2, emitted_ids=tuple(whole[:2])),
    )
    engine.add(make_request(prompt, choices=choices, max_tokens=12))
    outputs = []
    while engine.has_work:
        outputs += engine.step().outputs
    assert [t for o in outputs if o.index == 0 for t in o.token_ids] == whole[5:]
    assert [t for o in outputs if o.index == 2 for t in o.token_ids] == whole[2:]
    assert next(o for o in outputs if o.index == 0).offset == 5
    assert not [o for o in outputs if o.index == 1]


@pytest.mark.parametrize("min_tokens", [0, 3])
def test_end_tokens_end_and_min_tokens_hold_them_back(make_engine, min_tokens):
    prompt = [2, 3]
    free = expected(prompt, 1)[0]
    engine = make_engine(eos_token_ids=(free,))
    engine.add(make_request(prompt, max_tokens=6, min_tokens=min_tokens))
    engine.add(make_request(prompt, "ignores", max_tokens=2, ignore_eos=True))
    run = drain(engine)
    if min_tokens:
        assert free not in run.tokens["r", 0][:min_tokens]
    else:
        assert (run.tokens["r", 0], run.reasons["r", 0]) == ([free], FinishReason.STOP)
    assert run.tokens["ignores", 0][0] == free


def hand_over(source, target, request, *, alter=False, skip_release=False):
    """Drive a whole hand-off between two engines; returns the reservation."""
    prompt = request.prompt_ids
    source.add_prefill(PrefillJob(leg="leg", token_ids=prompt[:-1]))
    assert source.step().prefill_events[0].kind is PrefillEventKind.READY
    reservation = target.reserve(request)
    source.grant("leg")
    sent = reservation.num_skip_tokens
    while source.has_work:
        for event in source.step().prefill_events:
            if event.num_tokens > sent:
                payload = source.gather("leg", KvRange(sent, event.num_tokens, 0, 1))
                if alter:
                    payload[0] ^= 1
                target.scatter(request.key, KvRange(sent, event.num_tokens, 0, 1), payload)
                sent = event.num_tokens
    assert sent == reservation.num_tokens
    target.commit(request.key)
    source.release_prefill("leg")
    for engine in (source, target):
        engine.verify()
    return reservation


@pytest.mark.parametrize("n", [1, 3])
def test_hand_off_proves_who_computed_what(make_engine, n):
    source = make_engine(SchedulerConfig(max_num_batched_tokens=9), worker_weight=5, block_size=8)
    target = make_engine(worker_weight=2, block_size=4)
    prompt = list(range(100, 130))
    hand_over(source, target, make_request(prompt, n=n))
    run = drain(target)
    right = fake_generate(prompt, 8, prefill_weight=5, decode_weight=2)
    assert run.tokens == {("r", i): right for i in range(n)}
    assert right != expected(prompt, 8, 2)
    (stats,) = run.stats.values()
    assert (stats.num_transferred_tokens, stats.num_recomputed_tokens) == (29, 1)
    assert source.status().blocks.allocated == target.status().blocks.allocated == 0


def test_one_altered_block_changes_the_tokens(make_engine):
    source, target = make_engine(worker_weight=5), make_engine(worker_weight=2)
    prompt = list(range(100, 130))
    hand_over(source, target, make_request(prompt), alter=True)
    tokens = drain(target).tokens
    assert tokens["r", 0] != fake_generate(prompt, 8, prefill_weight=5, decode_weight=2)


def test_second_hand_off_skips_what_is_cached(make_engine):
    source, target = make_engine(worker_weight=5), make_engine(worker_weight=2)
    prompt = list(range(40))
    hand_over(source, target, make_request(prompt, "a"))
    drain(target)
    reservation = hand_over(source, target, make_request([*prompt, 1, 2, 3], "b"))
    assert reservation.num_skip_tokens == 32
    drain(target)


def test_reserved_blocks_are_invisible_until_commit(make_engine):
    engine = make_engine()
    request = make_request(range(40))
    engine.reserve(request)
    payload = memoryview(bytes(8 * 39))
    engine.scatter(request.key, KvRange(0, 39, 0, 1), payload)
    assert engine.match(request.prompt_ids, "", b"") == 0
    assert engine.status().blocks.reserved == 3
    assert not engine.has_work
    engine.commit(request.key)
    assert engine.match(request.prompt_ids, "", b"") == 32
    assert engine.status().blocks.reserved == 0


def test_scatter_checks_its_range(make_engine):
    engine = make_engine()
    request = make_request(range(40))
    engine.reserve(request)
    for begin, end, size in [(0, 40, 320), (5, 5, 0), (-1, 3, 32), (0, 4, 31)]:
        with pytest.raises(ValueError, match="tokens"):
            engine.scatter(request.key, KvRange(begin, end, 0, 1), memoryview(bytes(size)))
    engine.abort(request.key)
    with pytest.raises(KeyError):
        engine.scatter(request.key, KvRange(0, 4, 0, 1), memoryview(bytes(32)))
    ledger = engine.status().blocks
    assert ledger.free == ledger.total


def test_no_room_is_said_and_takes_nothing(make_engine):
    engine = make_engine(SchedulerConfig(max_num_seqs=2), num_blocks=20, block_size=4)
    engine.reserve(make_request(range(33), "first"))
    before = engine.status().blocks
    assert (before.reserved, before.total) == (8, 20)
    assert engine.reserve(make_request(range(37), "no room for its output")) is None
    assert engine.reserve(make_request(range(4), "no slots", n=2)) is None
    assert engine.status().blocks == before
    with pytest.raises(ContextLengthExceeded):
        engine.reserve(make_request(range(69), "never", max_tokens=1))
    assert engine.reserve(make_request(range(29), "fits", max_tokens=4)) is not None


def test_abort_of_a_job_in_each_phase_gives_everything_back(make_engine):
    for steps in range(5):
        engine = make_engine(SchedulerConfig(max_num_batched_tokens=8))
        engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(20))))
        for step in range(steps):
            engine.step()
            if step == 0:
                engine.grant("leg")
        engine.release_prefill("leg")
        drain(engine)
        assert engine.status().blocks.allocated == 0
        assert engine.status().num_prefill_jobs == 0


def test_poisoned_request_ends_alone(make_engine):
    engine = make_engine(poison_token=666)
    engine.add(make_request([1, 666], "bad", n=2))
    engine.add(make_request([1, 2, 3], "good"))
    run = drain(engine)
    assert run.tokens["good", 0] == expected([1, 2, 3], 8)
    assert isinstance(run.errors["bad"], Internal)


def test_queue_bounds_duplicates_and_deadlines(make_engine):
    clock = FakeClock()
    engine = make_engine(SchedulerConfig(max_num_waiting=2, max_num_seqs=1), clock)
    engine.add(make_request([1], "a", deadline_s=clock.now() + 100, max_tokens=50))
    with pytest.raises(BadRequest):
        engine.add(make_request([1], "a"))
    engine.step()
    engine.add(make_request([1], "b", deadline_s=clock.now() + 1))
    engine.add(make_request([1], "c"))
    with pytest.raises(Overloaded):
        engine.add(make_request([1], "d"))
    with pytest.raises(ContextLengthExceeded):
        engine.add(make_request(range(5000), "e"))
    clock.advance(2)
    result = engine.step()
    assert isinstance(result.errors[RequestKey("b", 0)], QueueTimeout)
    engine.abort(RequestKey("a", 0))
    tokens = drain(engine).tokens
    assert tokens == {("c", 0): expected([1], 8)}


def test_queued_tokens_are_those_of_prompts_that_wait_or_run(make_engine):
    engine = make_engine(SchedulerConfig(max_num_batched_tokens=32))
    engine.add(make_request(range(40)))
    assert engine.status().num_queued_tokens == 40
    engine.step()
    assert engine.status().num_queued_tokens == 8
    engine.step()
    assert (engine.status().num_running, engine.status().num_queued_tokens) == (1, 0)
    engine.add_prefill(PrefillJob(leg="leg", token_ids=tuple(range(100, 120))))
    engine.step()
    assert engine.status().num_queued_tokens == 20, "a job that waits for its grant is still to be computed"


def test_a_status_does_not_wait_for_a_change_that_takes_long(make_engine):
    engine = make_engine()
    began, may_end = threading.Event(), threading.Event()
    resident_adapters = engine.runner.resident_adapters

    def slow():
        began.set()
        assert may_end.wait(60)
        return resident_adapters()

    engine.runner.resident_adapters = slow
    pinning = threading.Thread(target=engine.pin_adapter, args=("a" * 64,))
    pinning.start()
    assert began.wait(60)
    before = engine.status()
    engine.runner.resident_adapters = resident_adapters
    may_end.set()
    pinning.join()
    assert before.num_running == 0
    engine.add(make_request(range(5)))
    engine.step()
    assert engine.status().num_running == 1
    assert engine.status() is engine.status(), "nothing changed in between"


def test_the_slowest_step_is_known_and_fades(make_engine):
    clock = FakeClock()
    engine = make_engine(clock=clock)
    runner = engine.runner
    collect = runner.collect

    def slow_prompts(handle):
        clock.advance(3.0 if engine.status().step < 2 else 0.01)
        return collect(handle)

    runner.collect = slow_prompts
    engine.add(make_request(range(5), max_tokens=1500, ignore_eos=True))
    drain(engine)
    assert 1.3 < engine.status().slow_step_s < 1.6  # halved after 1,386 steps


def test_one_stall_does_not_make_an_engine_slow():
    steps = SlowSteps()
    for took_s in [0.1] * 5 + [30.0] + [0.1] * 5:
        steps.observe(took_s)
    assert steps.slowest_s < 0.41
    steps.observe(20.0)
    assert steps.slowest_s > 19
