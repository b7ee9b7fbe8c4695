"""A runner that raises: the row that makes it raise ends alone, whichever call raises and with any steps in flight."""

import pytest

from stratos.common.errors import Internal
from stratos.core.kv import KvRange
from stratos.core.requests.records import PrefillJob
from stratos.engine.contract.results import PrefillEventKind
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.requests.generations import GenerationTable
from stratos.engine.requests.grammars import RequestGrammars
from stratos.engine.settings import SchedulerConfig
from tests.support.worlds.engine_driver import Run, assert_at_rest, drain, expected, make_request

BAD = 77
CALLS = ["launch", "forward", "sample", "collect"]


class FaultyRunner(FakeRunner):
    """Raises in ``call`` of each plan that ``is_hit`` accepts; "forward" is when the plan executes."""

    def __init__(self, config, call, is_hit):
        super().__init__(config)
        self.call, self.is_hit, self.num_raised = call, is_hit, 0

    def _check(self, call, plan):
        if call == self.call and self.is_hit(plan):
            self.num_raised += 1
            raise RuntimeError("injected")

    def launch(self, plan):
        self._check("launch", plan)
        return super().launch(plan)

    def _forward(self, handle):
        self._check("forward", handle.plan)
        super()._forward(handle)

    def sample(self, handle, masks=None, specs=None):
        self._check("sample", handle.plan)
        super().sample(handle, masks, specs)

    def collect(self, handle):
        self._check("collect", handle.plan)
        return super().collect(handle)


def has_bad_row(plan):
    return any(BAD in row.token_ids for row in plan.rows)


@pytest.fixture
def faulty(overlap):
    def make(call, is_hit=has_bad_row, config=None, **fake):
        runner = FaultyRunner(FakeConfig(**{"overlap": overlap, "block_size": 4, **fake}), call, is_hit)
        return EngineCore(runner, config or SchedulerConfig()), runner

    return make


@pytest.mark.parametrize("call", CALLS)
def test_the_row_that_raises_ends_alone(faulty, call):
    engine, runner = faulty(call)
    prompts = {f"r{i}": [i, i + 1, i + 2, 4, 5] for i in range(4)}
    for name, prompt in prompts.items():
        engine.add(make_request(prompt, name, n=2))
    run = Run(engine)
    run.step()
    run.step()
    engine.add(make_request([9, BAD], "bad", n=2))
    run.step()
    engine.add(make_request([6, 7], "late"))
    run.drain()
    assert_at_rest(engine)
    assert runner.num_raised == 2, "in the batch, and alone"
    assert isinstance(run.errors.pop("bad"), Internal)
    assert not run.errors
    for name, prompt in prompts.items():
        assert [run.tokens[name, i] for i in (0, 1)] == [expected(prompt)] * 2
    assert run.tokens["late", 0] == expected([6, 7])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("hit", range(6))
def test_a_fault_that_does_not_come_back_costs_nobody_anything(faulty, call, hit):
    seen = []

    def once(plan):
        seen.append(plan.step)
        return len(seen) == hit + 1

    engine, runner = faulty(call, once)
    engine.add(make_request([1, 2, 3, 4, 5, 6], "forks", n=3, presence_penalty=1.0, max_tokens=12))
    engine.add(make_request([3, 4], "other"))
    engine.add_prefill(PrefillJob(leg="leg", token_ids=(1, 2, 3, 4, 9)))
    run = Run(engine)
    run.step()
    engine.grant("leg")
    run.drain()
    assert runner.num_raised == 1
    assert not run.errors
    clean, _ = faulty("never")
    clean.add(make_request([1, 2, 3, 4, 5, 6], "forks", n=3, presence_penalty=1.0, max_tokens=12))
    assert {k: v for k, v in run.tokens.items() if k[0] == "forks"} == drain(clean).tokens
    assert run.tokens["other", 0] == expected([3, 4])
    assert bytes(engine.gather("leg", KvRange(0, 5, 0, 1))) == b"".join(
        (t + 1 + p).to_bytes(8, "little") for p, t in enumerate((1, 2, 3, 4, 9))
    )
    engine.release_prefill("leg")
    assert_at_rest(engine)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_blocks_of_a_row_that_is_not_finite_are_hit_by_no_other(make_engine, is_damaged):
    engine, prefix = make_engine(poison_token=666), tuple(range(40))
    engine.add(make_request(prefix, "first"))
    drain(engine)
    assert engine.match((*prefix, 1), "", b"") == 32
    engine.add(make_request((*prefix, 666 if is_damaged else 667), "bad"))
    assert set(drain(engine).errors) == ({"bad"} if is_damaged else set())
    assert engine.match((*prefix, 1), "", b"") == (0 if is_damaged else 32)
    engine.add(make_request((*prefix, 1), "next"))
    run = drain(engine)
    assert run.tokens["next", 0] == expected((*prefix, 1))
    assert run.stats["next"].num_cached_tokens == (0 if is_damaged else 32)
    assert_at_rest(engine)


@pytest.mark.parametrize("call", CALLS)
def test_a_job_that_raises_ends_alone(faulty, call):
    engine, _ = faulty(call, config=SchedulerConfig(max_num_batched_tokens=4))
    engine.add_prefill(PrefillJob(leg="bad", token_ids=(1, 2, 3, 4, BAD)))
    assert engine.step().prefill_events[0].kind is PrefillEventKind.READY
    engine.grant("bad")
    engine.add(make_request([3, 4], "other"))
    run = drain(engine)
    assert_at_rest(engine)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens["other", 0] == expected([3, 4])
    assert engine.status().num_prefill_jobs == 0


@pytest.mark.parametrize("call", CALLS)
def test_two_culprits_alone_in_the_batch_do_not_end_the_loop(faulty, call):
    engine, _ = faulty(call)
    engine.add(make_request([BAD], "a"))
    engine.add(make_request([1, BAD], "b"))
    assert set(drain(engine).errors) == {"a", "b"}
    engine.add(make_request([3, 4], "after"))
    assert drain(engine).tokens["after", 0] == expected([3, 4])


@pytest.mark.parametrize("call", CALLS)
def test_a_runner_that_computes_nothing_any_more_ends_the_loop(faulty, call):
    engine, runner = faulty(call, lambda plan: plan.step >= 3)
    engine.add(make_request([1, 2], "a"))
    engine.add(make_request([3, 4], "b"))
    with pytest.raises(RuntimeError, match="injected"):
        drain(engine)
    assert runner.num_raised == 4, "together, each alone, and without a request"


def test_a_sequence_that_cannot_be_scheduled_ends_alone(make_engine):
    engine = make_engine(block_size=4)
    engine.add(make_request([1, 2, -1, 4, 5], "bad"))  # has no block hash
    engine.add(make_request([3, 4], "good"))
    run = drain(engine)
    assert_at_rest(engine)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens == {("good", 0): expected([3, 4])}


class BrokenMasks:
    def wait(self):
        raise RuntimeError("injected")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_mask_that_cannot_be_filled_ends_its_request(make_engine, monkeypatch, is_late):
    engine = make_engine(block_size=4)
    engine.add(make_request([1, 2, 3], "bad", n=2))
    engine.add(make_request([3, 4], "good"))

    def start_masks(_, sampled):
        if not any(s.request.key.request_id == "bad" and len(s.tokens) > 4 for s in sampled):
            return None
        if is_late:
            return BrokenMasks()
        raise RuntimeError("injected")

    monkeypatch.setattr(RequestGrammars, "start_masks", start_masks)
    run = drain(engine)
    assert_at_rest(engine)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens["good", 0] == expected([3, 4])


@pytest.mark.parametrize("method", ["row", "advance"])
def test_a_bug_in_the_books_of_one_request_ends_that_request(make_engine, monkeypatch, method):
    engine = make_engine(block_size=4)
    engine.add(make_request([1, 2, 3], "bad", n=2))
    engine.add(make_request([3, 4], "good"))
    original = getattr(GenerationTable, method)

    def fails(self, sequence, *args):
        if sequence.request.key.request_id == "bad" and len(sequence.tokens) > 4:
            raise ZeroDivisionError
        return original(self, sequence, *args)

    monkeypatch.setattr(GenerationTable, method, fails)
    run = drain(engine)
    assert_at_rest(engine)
    assert isinstance(run.errors["bad"], Internal)
    assert run.tokens["good", 0] == expected([3, 4])


def test_an_engine_whose_runner_another_one_has_taken_over_refuses_to_step(make_engine, overlap):
    first = make_engine(block_size=4)
    first.add(make_request([1, 2, 3], "first", max_tokens=8))
    first.step()
    second = EngineCore(first.runner, SchedulerConfig())
    with pytest.raises(RuntimeError, match="another engine"):
        first.step()
    second.add(make_request([1, 2, 3], "second", max_tokens=8))
    assert drain(second).tokens["second", 0] == expected([1, 2, 3], 8)
