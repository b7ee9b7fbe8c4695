"""Plans carry the entries of block tables that are new; what a runner keeps of them equals the engine's own tables.

The audit is in ``AuditedRunner``; ``test_engine_properties`` runs it over random hand-offs, forks and aborts, too.
"""

import random

import pytest

from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.contract.plan import PlanRow, StepPlan
from stratos.engine.fake.runner import FakeConfig
from tests.support.fakes.audited_runner import audited_engine
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config


def row(seq_id, begin, *blocks):
    return PlanRow(seq_id=seq_id, token_ids=(1,), start=0, block_table=blocks, table_begin=begin)


def plan(*rows, ended=()):
    return StepPlan(step=0, rows=rows, ended=ended)


def test_tables_grow_change_end_and_begin_again():
    tables = KeptTables()
    tables.apply(plan(row(1, 0, 7, 4), row(2, 0, 3)))
    for _ in range(2):  # a plan may be carried out again
        tables.apply(plan(row(1, 2, *range(20, 60)), row(2, 1)))
    assert tables.of(1).tolist() == [7, 4, *range(20, 60)]
    tables.apply(plan(row(1, 1, 9)))
    assert tables.of(1).tolist() == [7, 9]
    tables.apply(plan(row(1, 0, 5), ended=(1, 2, 99)))
    assert tables.of(1).tolist() == [5]
    assert len(tables) == 1


@pytest.mark.parametrize("begin", [1, 4])
def test_a_row_that_builds_on_unknown_entries_is_refused(begin):
    tables = KeptTables()
    tables.apply(plan(row(1, 0, 7, 4, 2), row(2, 0, 8)))
    tables.apply(plan(ended=(2,)))
    with pytest.raises(ValueError, match="entries of its block table are known"):
        tables.apply(plan(row(2 if begin == 1 else 1, begin, 5)))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "window", [{}, {"window": 10}, {"window": 10, "num_sinks": 6}], ids=["full", "window", "sinks"]
)
@pytest.mark.parametrize("num_host_blocks", [0, 30])
def test_they_are_the_engines_after_any_history(overlap, window, num_host_blocks):
    draw = random.Random(repr((overlap, window, num_host_blocks)))
    shape = {"num_blocks": 22, "block_size": 4, "overlap": overlap, "num_host_blocks": num_host_blocks, **window}
    config = scheduler_config(max_num_seqs=5, max_num_batched_tokens=16, swap_costs=False, **CROWDED)
    engine, runner = audited_engine(FakeConfig(**shape), config)
    run, asked = Run(engine), {}
    for step in range(150):
        if step < 110 and draw.random() < 0.4:
            prompt = [draw.randrange(50) for _ in range(draw.randint(1, 12))]
            asked[f"r{step}"] = make_request(prompt, f"r{step}", draw.randint(1, 2), max_tokens=draw.randint(1, 30))
            engine.add(asked[f"r{step}"])
        if asked and draw.random() < 0.1:
            engine.abort(asked.pop(draw.choice(sorted(asked))).key)
        runner.fails_next = draw.choice(("before", "after")) if draw.random() < 0.05 else ""
        run.step()
    runner.fails_next = ""
    run.drain()
    assert not run.errors
    assert not runner.differences
    assert engine.status().num_preemptions or window
    for name, request in asked.items():
        for choice in request.choices:
            got = run.tokens[name, choice.index]
            assert got == expected(request.prompt_ids, len(got), **window)
    assert_at_rest(engine)
    assert runner.num_carried < runner.num_planned * (0.8 if window else 0.5), "they carry changes alone"
