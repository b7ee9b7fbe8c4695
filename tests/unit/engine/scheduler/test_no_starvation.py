"""No request starves: the time between two signs of progress is bounded by ageing, under any load.

Progress is one more token of KV or output than ever before.  The bound, in seconds of the engine's clock, has the
same three parts everywhere: the ageing that lifts a request to the top, the admissions of others that the quota lets
pass before it, and the turns of those who are before it by right.
"""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.clock import FakeClock
from stratos.core.requests.limits import BATCH_CLASS, DEFAULT_PRIORITY_CLASS
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner, fake_generate
from tests.support.examples import examples
from tests.support.worlds.engine_driver import make_request
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.terms import make_terms

ABOVE_BATCH = range(1, BATCH_CLASS)
AGEING_S, CLASSES, QUOTA = 2.0, 4, 10


def sized_request(name, prompt, max_tokens, priority_class, now):
    tokens = ((index * 7 + prompt) % 50 for index in range(prompt))
    return make_request(tokens, name, max_tokens=max_tokens, priority_class=priority_class, arrival_s=now)


class Watched:
    """An engine under a fake clock, with the progress of every request in it and the ledgers checked at every step."""

    def __init__(self, overlap, step_s, num_blocks, **config):
        self.clock, self.step_s = FakeClock(), step_s
        runner = FakeRunner(FakeConfig(num_blocks=num_blocks, block_size=4, overlap=overlap))
        defaults = {"prefix_cache": False, "default_output_tokens": 4}
        self.engine = EngineCore(runner, scheduler_config(**{**defaults, **config}), self.clock)
        self.requests, self.tokens = {}, defaultdict(list)
        self.most, self.moved_s, self.gaps = {}, {}, defaultdict(float)
        self.num_computed = 0

    def add(self, name, prompt, max_tokens, priority_class=0):
        request = sized_request(name, prompt, max_tokens, priority_class, self.clock.now())
        self.engine.add(request)
        self.requests[name] = request
        self.most[name], self.moved_s[name] = 0, self.clock.now()

    def sequences(self):
        for sequence in self.engine.inspect().sequences:
            if sequence.key is not None:
                yield sequence.key.request_id, sequence

    def step(self):
        self.clock.advance(self.step_s)
        result = self.engine.step()
        self.engine.verify()
        assert not result.errors
        for name, sequence in self.sequences():
            self._see(name, sequence.num_computed + sequence.num_output)
        for output in result.outputs:
            name = output.key.request_id
            self.tokens[name] += output.token_ids
            if output.finish_reason:
                self._end(name)
        return result

    def _end(self, name):
        if name in self.requests:  # those that come by hand-off bring no KV that could be checked
            self._see(name, 10**6)
            self._check(self.requests.pop(name))
            del self.most[name], self.moved_s[name]

    def _see(self, name, progress):
        if name not in self.requests:
            return
        now = self.clock.now()
        self.gaps[name] = max(self.gaps[name], now - self.moved_s[name])
        if progress > self.most[name]:
            self.most[name], self.moved_s[name] = progress, now

    def _check(self, request):
        got = self.tokens[request.key.request_id]
        assert len(got) == request.sampling.max_tokens
        assert got == fake_generate(request.prompt_ids, len(got), prefill_weight=1, decode_weight=1)


@pytest.mark.parametrize(
    ("overlap", "flood", "classes"),
    [(False, 0, ABOVE_BATCH), (True, 0, ABOVE_BATCH), (True, DEFAULT_PRIORITY_CLASS, [BATCH_CLASS])],
)
@settings(max_examples=examples(20), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_slots=st.integers(2, 4),
    budget=st.sampled_from([2, 6, 16]),
    num_blocks=st.sampled_from([14, 40]),
    step_s=st.sampled_from([0.1, 0.5]),
)
def test_every_class_goes_on_under_a_flood_of_one_that_it_can_reach(
    overlap, flood, classes, seed, num_slots, budget, num_blocks, step_s
):
    """The batch class ages up to the default one; it waits for ever under a flood from above that."""
    rng = random.Random(seed)
    limits = {"max_num_seqs": num_slots, "max_num_batched_tokens": budget, "kv_watermark": 1.0}
    watched = Watched(overlap, step_s, num_blocks, **limits)
    low = [f"low{index}" for index in range(4)]
    for name in low:
        watched.add(name, rng.randrange(1, 25), rng.randrange(1, 12), rng.choice(classes))
    # a batch slot comes free when all of the batch is computed, twice if it is preempted, at `budget` tokens a step
    turn_s = 2 * (num_slots * (32 + 6) / budget + 12) * step_s
    bound = (CLASSES - 1) * AGEING_S + QUOTA * (len(low) + 1) * turn_s
    count = 0
    while any(name in watched.requests for name in low):
        while watched.engine.status().num_waiting < len(low) + 2:
            count += 1
            watched.add(f"top{count}", rng.randrange(1, 32), rng.randrange(1, 6), flood)
        watched.step()
        assert max(watched.gaps[name] for name in low) <= bound


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [3, 8])
def test_a_long_prompt_in_the_batch_goes_on_beside_prompts_of_a_higher_class_that_keep_coming(overlap, budget):
    """It gets what is left of a step before a new request is admitted: it waits at most for those in the batch."""
    watched = Watched(overlap, 0.1, 400, max_num_seqs=6, max_num_batched_tokens=budget)
    watched.add("long", 120, 3, CLASSES - 1)
    watched.step()
    while "long" in watched.requests:
        while watched.engine.status().num_waiting < 2:
            watched.add(f"top{len(watched.moved_s)}-{watched.clock.now()}", 40, 2)
        watched.step()
        assert watched.gaps["long"] <= 5 * (40 / budget + 2) * 0.1


@pytest.mark.parametrize("overlap", [False, True])
def test_streams_that_come_by_hand_off_leave_tokens_and_a_batch_slot_to_prompts(overlap):
    """Hand-offs that never end could take every token of every step, or each batch slot as soon as it is free."""
    watched = Watched(overlap, 0.1, 400, max_num_seqs=12, max_num_batched_tokens=4)
    engine, count = watched.engine, 0
    watched.add("first", 40, 4, 1)
    watched.step()
    watched.add("second", 40, 4, 1)
    while "second" in watched.requests:
        count += 1
        request = sized_request(f"stream{count}", 6, 30, 0, watched.clock.now())
        if engine.reserve(request) is not None:
            engine.commit(request.key)
        watched.step()
        assert max(watched.gaps[name] for name in ("first", "second")) <= AGEING_S + 30 * 0.1 + 1.0
    assert count > 40


def run_out_of_room(seed, overlap):
    """A random load in a pool that is too small for it; yields every preemption of a sequence that has a token."""
    rng = random.Random(seed)
    watched = Watched(
        overlap, 0.1, rng.randrange(14, 40), max_num_seqs=rng.choice([6, 10]),
        max_num_batched_tokens=rng.choice([10, 12, 16, 64]), kv_watermark=1.0, admission_counts_budgets=False,
    )  # fmt: skip
    for index in range(rng.randrange(4, 12)):
        watched.add(f"r{index}", rng.randrange(1, 20), rng.randrange(6, 30))
        watched.clock.advance(0.001)
    while watched.requests:
        in_batch = {name for name, s in watched.sequences() if s.num_output and s.queue != "waiting"}
        watched.step()
        for name, sequence in watched.sequences():
            if sequence.queue == "waiting" and name in in_batch:
                yield name, sequence.num_output


@pytest.mark.parametrize("overlap", [False, True])
def test_whoever_is_preempted_twice_has_got_a_token_in_between(overlap):
    """Of one class and without new arrivals, no work is thrown away twice for nothing."""
    count = 0
    for seed in range(examples(100)):
        preempted_at = {}
        for name, num_output in run_out_of_room(seed, overlap):
            assert preempted_at.get(name) != num_output, f"{name} was preempted twice without a token between"
            preempted_at[name] = num_output
            count += 1
    assert count > 20


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_waiting_request_gets_in_under_a_flood_of_hand_offs_and_jobs(overlap, seed):
    """Hand-offs and prefill jobs take blocks past the waiting queue's head only as far as their class allows."""
    rng = random.Random(seed)
    watched = Watched(overlap, 0.1, 24, max_num_seqs=5, max_num_batched_tokens=16, default_output_tokens=8)
    watched.add("waits", 48, 8, 1)
    count, reserved, legs = 0, [], set()
    while "waits" in watched.requests:
        count += 1
        request = sized_request(f"hand{count}", rng.randrange(2, 20), rng.randrange(1, 8), 0, watched.clock.now())
        reservation = watched.engine.reserve(request)
        if reservation is not None:
            reserved.append(request)
        if reserved and rng.random() < 0.5:
            watched.engine.abort(reserved.pop(0).key)
        if len(legs) < 3:
            watched.engine.add_prefill(
                PrefillJob(
                    leg=f"leg{count}",
                    token_ids=tuple(range(rng.randrange(2, 16))),
                    terms=make_terms(arrival_s=watched.clock.now()),
                )
            )
            legs.add(f"leg{count}")
        for event in watched.step().prefill_events:
            if event.kind is PrefillEventKind.READY:
                watched.engine.grant(event.leg)
            elif event.kind is PrefillEventKind.DONE:
                watched.engine.release_prefill(event.leg)
                legs.discard(event.leg)
        assert watched.gaps["waits"] <= AGEING_S + 6.0
