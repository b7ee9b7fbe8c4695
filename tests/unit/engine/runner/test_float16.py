"""float16: nearer to float32 than bfloat16 is, the same bits in any surroundings, and KV of its own type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.reference.exact_traces import alone, generated
from tests.support.reference.tiny_models import FAMILIES, reference_logprobs, save_tiny
from tests.support.worlds.plan_driver import FULL, Driver, load_runner, teacher_forced

PROMPT = [(i * 37 + 11) % 97 for i in range(41)]
CHUNK = 7
ENDS = [*range(CHUNK - 1, len(PROMPT) - 1, CHUNK), len(PROMPT) - 1]


@pytest.mark.parametrize("name", ["mistral-window", "qwen3-moe"])
def test_it_rounds_less_than_bfloat16_and_its_bits_depend_on_nothing_around_them(tmp_path: Path, name: str) -> None:
    prefix, changes = FAMILIES[name]
    model = save_tiny(tmp_path, prefix, **changes)
    reference = reference_logprobs(model, PROMPT)[ENDS]
    runners = {dtype: load_runner(tmp_path, dtype=dtype, kv_pool_bytes=16 << 20) for dtype in ("float16", "bfloat16")}
    errors = {
        dtype: float((teacher_forced(runner, PROMPT, CHUNK) - reference).abs().max())
        for dtype, runner in runners.items()
    }
    assert errors["float16"] < errors["bfloat16"] / 2
    assert errors["float16"] < 0.02

    runner = runners["float16"]
    assert runner.info.identity.kv_dtype == "float16"
    expected = alone(runner, PROMPT)
    assert all(alone(runner, PROMPT, chunk) == expected for chunk in (1, 16))
    driver = Driver(runner)
    streams = [driver.stream(PROMPT[3 : 4 + 5 * index]) for index in range(4)]
    assert generated(driver, [*streams, driver.stream(PROMPT, params=FULL)], 5)[-1] == expected
    assert torch.isfinite(reference).all()
