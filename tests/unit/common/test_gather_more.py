"""What comes within a few turns of the event loop leaves in one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stratos.common.background import gather_more


class Line:
    """What waits for a message; ``numbers`` come one in each turn, a 0 stands for none."""

    def __init__(self, *numbers: int) -> None:
        self.waiting, self._numbers, self.num_turns = list[int](), list(numbers), 0
        self._turn()

    def _turn(self) -> None:
        self.num_turns += 1
        if self._numbers:
            self.waiting += [number for number in (self._numbers.pop(0),) if number]
            asyncio.get_running_loop().call_soon(self._turn)

    @property
    def num_waiting(self) -> Callable[[], int]:
        return self.waiting.__len__


@pytest.mark.parametrize(
    ("numbers", "gathered"),
    [((1,), [1]), ((1, 2, 3), [1, 2, 3]), ((1, 2, 0, 3), [1, 2]), ((0, 1), []), ((1, 2, 3, 4, 5, 6), [1, 2, 3, 4])],
)
async def test_turns_pass_as_long_as_each_brings_more_up_to_a_whole_message(
    numbers: tuple[int, ...], gathered: list[int]
) -> None:
    line = Line(*numbers)
    await gather_more(line.num_waiting, 4)
    assert line.waiting == gathered


async def test_a_lone_one_waits_for_one_turn() -> None:
    line = Line(1, 0, 0, 0)
    await gather_more(line.num_waiting, 64)
    assert line.num_turns == 2
