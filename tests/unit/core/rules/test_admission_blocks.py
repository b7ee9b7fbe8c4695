"""What choices of one prompt copy of it, against a count block by block."""

from __future__ import annotations

import math

import pytest

from stratos.core.rules.admission import copied_blocks, output_blocks


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("num_choices", [1, 2, 5])
def test_prompt_and_expected_output_cover_what_the_choices_come_to_hold(size: int, num_choices: int) -> None:
    for num_prompt in range(1, 3 * size):
        for num_output in range(1, 3 * size):
            shared = (num_prompt - 1) // size
            held = shared + num_choices * (math.ceil((num_prompt + num_output - 1) / size) - shared)
            promised = math.ceil((num_prompt - 1) / size) + copied_blocks(num_prompt, num_choices, size)
            promised += output_blocks(num_output, 10_000, num_choices, size, is_resumed=False)
            assert held <= promised, (num_prompt, num_output)


def test_nothing_is_copied_of_a_prompt_that_fills_its_blocks_and_for_one_choice() -> None:
    assert [copied_blocks(num, 3, 4) for num in (8, 9, 10)] == [2, 0, 2]
    assert copied_blocks(10, 1, 4) == 0
