"""The number of threads follows what a small product takes, not what the machine has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from stratos.common.clock import FakeClock
from stratos.engine.layers.thread_scope import one_thread
from stratos.engine.runner import threads
from stratos.engine.runner.threads import ThreadChoice, best, thread_candidates

THREADS = Path("/proc/self/task")


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A product takes ``seconds[threads]``."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.clock, self.calls = seconds, FakeClock(), 0

    def __call__(self) -> None:
        self.calls += 1
        self.clock.advance(self.seconds[torch.get_num_threads()])

    def steps(self, choice: ThreadChoice, count: int, seconds: float, num_tokens: int = 8) -> None:
        for _ in range(count):
            with choice.watching(num_tokens):
                self.clock.advance(seconds)


IDLE, BUSY = {1: 2e-4, 2: 1.1e-4}, {1: 2e-4, 2: 4e-3}


def test_candidates_and_the_best_of_them() -> None:
    assert [thread_candidates(n) for n in (1, 2, 3, 16)] == [(1,), (1, 2), (1, 3), (1, 8, 16)]
    assert best({1: 1.0, 2: 0.6, 4: 0.59}) == 2
    assert best({1: 1.0, 2: 0.97}) == 1
    assert best({1: 1.0, 2: 1.5, 4: 0.5}) == 4


@pytest.mark.parametrize(("seconds", "expected"), [(IDLE, 2), (BUSY, 1)])
def test_the_start_takes_what_is_fastest_and_says_so(
    seconds: dict[int, float], expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(seconds)
    with caplog.at_level(logging.INFO):
        choice = ThreadChoice(2, machine, machine.clock)
    assert choice.num_threads == torch.get_num_threads() == expected
    assert [record.message[:26] for record in caplog.records] == [f"computing with {expected} thread(s)"]


def test_one_core_leaves_nothing_to_choose() -> None:
    machine = Machine({1: 1.0})
    choice = ThreadChoice(1, machine, machine.clock)
    machine.steps(choice, 50, 1.0)
    assert (machine.calls, choice.num_threads) == (0, 1)


def test_slow_steps_on_a_machine_that_became_busy_lead_to_one_thread() -> None:
    machine = Machine(IDLE)
    choice = ThreadChoice(2, machine, machine.clock)
    machine.steps(choice, 600, 0.01)
    calls = machine.calls
    machine.seconds = BUSY
    machine.steps(choice, threads.SLOW_STEPS - 1, 0.05)
    assert machine.calls == calls
    machine.steps(choice, 2, 0.05)
    assert choice.num_threads == torch.get_num_threads() == 1


def test_a_large_step_is_not_taken_for_a_slow_one() -> None:
    machine = Machine(IDLE)
    choice = ThreadChoice(2, machine, machine.clock)
    machine.steps(choice, 600, 0.01)
    calls = machine.calls
    machine.steps(choice, 100, 0.5, num_tokens=512)
    assert machine.calls == calls


def test_fewer_threads_than_there_are_are_doubted_less_and_less_often() -> None:
    machine = Machine(BUSY)
    choice = ThreadChoice(2, machine, machine.clock)
    per_probe = machine.calls
    machine.steps(choice, 1000, 0.1)
    assert 3 <= machine.calls // per_probe <= 6
    machine.seconds = IDLE
    machine.steps(choice, 3000, 0.1)
    assert choice.num_threads == 2


def test_a_fixed_choice_stays() -> None:
    machine = Machine(BUSY)
    choice = ThreadChoice(2, machine, machine.clock)
    choice.is_fixed = True
    machine.seconds = IDLE
    machine.steps(choice, 1000, 0.1)
    assert choice.num_threads == 1


@pytest.mark.parametrize("is_alone", [True, False])
def test_work_beside_the_steps_starts_no_team_of_threads(is_alone: bool) -> None:
    def work() -> int:
        torch.set_num_threads(2)
        before = set(THREADS.iterdir())
        with one_thread() if is_alone else nullcontext():
            torch.ones(1 << 22).add_(1)
        assert torch.get_num_threads() == 2
        return len(set(THREADS.iterdir()) - before)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == (0 if is_alone else 1)
