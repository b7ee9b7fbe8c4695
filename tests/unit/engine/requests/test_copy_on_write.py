"""Choices of one prompt share its blocks: none writes a block that another reads, in any plan of any schedule."""

import random
from collections import Counter

import pytest

from stratos.core.requests.records import RequestKey
from stratos.engine.contract.kept_tables import KeptTables
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from tests.support.examples import examples
from tests.support.worlds.engine_driver import CROWDED, Run, assert_at_rest, drained_tokens, expected, make_request
from tests.support.worlds.engine_settings import scheduler_config

SIZE = 4


class Watched(FakeRunner):
    """Checks every plan against the tables of all sequences before it runs."""

    engine: EngineCore

    def __init__(self, config):
        super().__init__(config)
        self.copies, self.seen, self.planned = [], Counter(), KeptTables()

    def launch(self, plan):
        held = self.engine.inspect()
        sequences, hashed = held.sequences, set(held.cached_blocks.values())
        written = {}
        self.planned.apply(plan)
        for row in plan.rows:
            end = row.start + len(row.token_ids)
            for index in range(row.start // SIZE, -(-end // SIZE)):
                block = self.planned.of(row.seq_id)[index]
                assert written.setdefault(block, row.seq_id) == row.seq_id, "two rows write one block"
                readers = {s.seq_id for s in sequences if block in s.block_table} - {row.seq_id}
                assert not readers, f"{row.seq_id} writes block {block}, which {readers} read"
                assert block not in hashed, "a block that may be found by hash is written"
        tables = [s.block_table for s in sequences]
        destinations = [destination for _, destination in plan.copies]
        assert len(set(destinations)) == len(destinations)
        for source, destination in plan.copies:
            assert sum(destination in table for table in tables) == 1
            assert source != destination
        self.copies += plan.copies
        self.seen["copied and written in one plan"] += bool({source for source, _ in plan.copies} & written.keys())
        self.seen["copied while others swap"] += bool(plan.copies and (plan.swap_outs or plan.swap_ins))
        return super().launch(plan)


def make_engine(overlap, **changes):
    fake = {"num_blocks": 40, "block_size": SIZE, "overlap": overlap, **changes}
    config = scheduler_config(swap_costs=False, max_num_seqs=8, max_num_batched_tokens=16, **CROWDED)
    runner = Watched(FakeConfig(**fake))
    runner.engine = EngineCore(runner, config)
    return runner.engine, runner


@pytest.mark.parametrize("length", range(1, 14))
def test_the_block_that_is_not_full_is_copied_once_per_sibling(overlap, length):
    engine, runner = make_engine(overlap)
    prompt = [11 * i % 89 for i in range(length)]
    engine.add(make_request(prompt, "r", n=3, max_tokens=9))
    assert drained_tokens(engine) == {("r", i): expected(prompt, 9) for i in range(3)}
    is_partial = (length - 1) % SIZE > 0
    assert len(runner.copies) == (2 if is_partial else 0)
    assert len({source for source, _ in runner.copies}) == int(is_partial)


def test_forks_copy_before_they_write_in_any_schedule(overlap):
    """Crowded pools of both tiers: choices are preempted, swapped, restored and aborted around their forks."""
    seen = Counter()
    for seed in range(examples(60)):
        draw = random.Random(seed)
        engine, runner = make_engine(
            overlap, num_blocks=draw.choice([10, 12, 16]), num_host_blocks=draw.choice([0, 4, 40])
        )
        run, prompts, ended = Run(engine), {}, set()
        for turn in range(60):
            if draw.random() < 0.3 and turn < 30:
                name, length = f"r{turn}", draw.randrange(1, 14)
                prompts[name] = [draw.randrange(3) * 100 + i for i in range(length)]
                n, max_tokens = draw.randrange(1, 5), draw.randrange(1, 9)
                engine.add(make_request(prompts[name], name, n, max_tokens=max_tokens, arrival_s=turn))
            if prompts and draw.random() < 0.1:
                name = draw.choice(sorted(prompts))
                choices = draw.choice([(), (0,), (1,)])
                engine.abort(RequestKey(name, 0), choices)
                ended |= {name} if not choices else set()
            for sequence in engine.inspect().sequences:
                seen["awaits its copy"] += sequence.awaits_copy
                seen["a fork is swapped out"] += bool(sequence.is_swapped and sequence.choice)
            assert not ended & {output.key.request_id for output in run.step().outputs}
        assert not run.drain().errors
        for (name, index), got in run.tokens.items():
            assert got == expected(prompts[name], len(got)), (seed, name, index)
        assert_at_rest(engine)
        seen += runner.seen
        seen["copies"] += len(runner.copies)
    wanted = {"awaits its copy", "a fork is swapped out", "copied while others swap", "copies"}
    assert all(seen[what] > 0 for what in wanted), seen
    assert seen["copied and written in one plan"] > 0
