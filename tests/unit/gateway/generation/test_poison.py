"""A request that kills its workers, among others, in random fleets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratos.common.errors import PromptRefused
from stratos_gateway.generation import recovery
from stratos_gateway.generation.generation import Generation
from stratos_gateway.generation.suspicion import SETTLED_STEPS
from tests.support.worlds.poison_fleet import PoisonFleet

POISON = -7
MAX_STEPS = 900


@dataclass(frozen=True)
class Case:
    """A random fleet and what runs on it."""

    num_workers: int
    restart_steps: int
    crash_step: int
    seed: int
    bystanders: Sequence[tuple[int, int]]
    """Step of the arrival, and tokens, of each."""
    poison_at: int


cases = st.builds(
    Case,
    num_workers=st.integers(1, 4),
    restart_steps=st.integers(1, 30),
    crash_step=st.integers(0, SETTLED_STEPS),
    seed=st.integers(0, 1 << 16),
    bystanders=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=14),
    poison_at=st.integers(0, 60),
)


async def _run(fleet: PoisonFleet, arrivals: dict[int, list[Generation]]) -> None:
    tasks: list[asyncio.Task[None]] = []
    for step in range(MAX_STEPS):
        tasks += [asyncio.create_task(generation.run()) for generation in arrivals.pop(step, [])]
        if not arrivals and all(task.done() for task in tasks):
            return
        await fleet.step()
    raise AssertionError("not all requests ended")


async def _play(case: Case) -> tuple[PoisonFleet, list[Generation], list[Generation]]:
    """The poison among its bystanders, then two re-sends of it and another bystander."""
    fleet = PoisonFleet(case.num_workers, case.restart_steps, case.crash_step, case.seed)
    bystanders = [fleet.request(100 + number, tokens) for number, (_, tokens) in enumerate(case.bystanders)]
    poisons = [fleet.request(POISON, 50) for _ in range(3)]
    arrivals: dict[int, list[Generation]] = {case.poison_at: [poisons[0]]}
    for generation, (step, _) in zip(bystanders, case.bystanders, strict=True):
        arrivals.setdefault(step, []).append(generation)
    await _run(fleet, arrivals)
    for poison in poisons[1:]:
        await _run(fleet, {0: [poison]})
    late = fleet.request(99, 5)
    await _run(fleet, {0: [late]})
    return fleet, poisons, [*bystanders, late]


@given(cases)
@settings(max_examples=15, deadline=None)
def test_a_poison_costs_two_workers_and_nothing_else_is_refused(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "RETRY_WAIT_S", 0.0)
        fleet, poisons, bystanders = asyncio.run(_play(case))
    assert sum(fleet.killers.values()) == 2
    assert all(isinstance(poison.error, PromptRefused) for poison in poisons)
    assert [generation.error for generation in bystanders] == [None] * len(bystanders)
    for generation in bystanders:
        (choice,) = generation.transcript.choices
        assert choice.ids == list(range(generation.spec.sampling.max_tokens))


@given(
    st.integers(2, 4), st.integers(1, 30), st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(0, 99)
)
@settings(max_examples=8, deadline=None)
def test_settled_streams_survive_any_number_of_deaths(
    num_workers: int, restart_steps: int, kills: list[int], seed: int
) -> None:
    async def play() -> list[Generation]:
        fleet = PoisonFleet(num_workers, restart_steps, 0, seed)
        streams = [fleet.request(100 + number, 120) for number in range(6)]
        tasks = [asyncio.create_task(stream.run()) for stream in streams]
        for step in range(MAX_STEPS):
            await fleet.step()
            if step in kills:
                _kill_settled(fleet)
            if all(task.done() for task in tasks):
                return streams
        raise AssertionError("not all streams ended")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "RETRY_WAIT_S", 0.0)
        streams = asyncio.run(play())
    assert [stream.error for stream in streams] == [None] * 6
    assert all(stream.transcript.choices[0].ids == list(range(120)) for stream in streams)


def _kill_settled(fleet: PoisonFleet) -> None:
    """Kill a worker where every stream has settled."""
    for worker in fleet.workers:
        if not worker.down_steps and worker.running and worker.has_settled(SETTLED_STEPS):
            worker.die()
            return


async def test_copies_that_run_at_the_same_time_cost_their_workers_and_one_more() -> None:
    fleet = PoisonFleet(num_workers=8, restart_steps=3, crash_step=0, seed=1)
    copies = [fleet.request(POISON, 50) for _ in range(4)]
    await _run(fleet, {0: copies})
    assert all(isinstance(copy.error, PromptRefused) for copy in copies)
    assert sum(fleet.killers.values()) == 5


@pytest.mark.parametrize("crash_step", [0, SETTLED_STEPS])
async def test_a_tenant_whose_prompts_kill_again_and_again_is_a_suspect_as_a_whole(crash_step: int) -> None:
    """Each prompt differs from the ones before: three cost two workers each, from then on each costs one."""
    fleet = PoisonFleet(num_workers=4, restart_steps=2, crash_step=crash_step, seed=1)
    deaths = []
    for number in range(6):
        poison = fleet.request(POISON - number, 50)
        await _run(fleet, {0: [poison]})
        assert isinstance(poison.error, PromptRefused)
        deaths.append(sum(worker.num_deaths for worker in fleet.workers))
    assert deaths == [2, 4, 6, 7, 8, 9]
    good = [fleet.request(200 + number, 5) for number in range(6)]
    await _run(fleet, {0: good})
    assert [generation.error for generation in good] == [None] * 6, "what is harmless is served, one at a worker first"
    fleet.clock.advance(601.0)
    forgiven = fleet.request(POISON - 10, 50)
    await _run(fleet, {0: [forgiven]})
    assert sum(worker.num_deaths for worker in fleet.workers) == 11
