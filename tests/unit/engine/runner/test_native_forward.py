"""The forward pass in one call: the same bits as operation by operation, and Python's lock is seldom given away."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from stratos.engine.native.library import load_native
from stratos.engine.runner.forward import LayeredForward
from stratos.engine.runner.native_forward import NativeForward
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.pairwise import thinned
from tests.support.reference.exact_traces import generated
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import FAMILIES, SHAPES, save_tiny
from tests.support.worlds.plan_driver import Driver, load_runner

OPERATION_BY_OPERATION = ("DeepseekV2", "DeepseekV3", "Qwen3_5")
MODELS = {name: case for name, case in FAMILIES.items() if case[0] not in OPERATION_BY_OPERATION}
MODELS |= {name: ("Llama", changes) for name, changes in SHAPES.items()}
DTYPES = ("float32", "bfloat16", "float16")
CASES = thinned(
    itertools.product(MODELS, DTYPES), [(family, DTYPES[index % len(DTYPES)]) for index, family in enumerate(MODELS)]
)
"""By default each family in one type, and each type with a third of them."""
PROMPTS = [[(i * 37 + 11 * k) % 97 for i in range(length)] for k, length in enumerate((41, 1, 16, 30))]
NUM_HANDOFFS = 2
"""Of a step whose batch is that of the step before: the forward pass, and the best tokens."""
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


def both(path: Path, dtype: str, **settings: Any) -> tuple[TorchRunner, TorchRunner]:
    runners = [load_runner(path, dtype=dtype, whole_step=is_whole, **settings) for is_whole in (True, False)]
    if not isinstance(runners[0].forward, NativeForward):
        pytest.skip("the kernels are not built")
    assert isinstance(runners[1].forward, LayeredForward)
    return runners[0], runners[1]


@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_one_call_and_many_give_the_same_bits(tmp_path: Path, family: str, dtype: str) -> None:
    prefix, changes = MODELS[family]
    save_tiny(tmp_path, prefix, **changes)
    whole, layered = both(tmp_path, dtype)
    assert whole.info.identity.numerics_id == layered.info.identity.numerics_id
    traces = []
    for runner in (whole, layered):
        driver = Driver(runner)
        traces.append(generated(driver, [driver.stream(prompt) for prompt in PROMPTS], 11))
    assert traces[0] == traces[1]


def test_experts_take_the_layered_pass_where_the_switch_is_off(tmp_path: Path) -> None:
    prefix, changes = FAMILIES["mixtral"]
    save_tiny(tmp_path, prefix, **changes)
    assert isinstance(load_runner(tmp_path, whole_step_experts=False).forward, LayeredForward)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_experts_with_few_rows_and_with_many_have_the_same_bits(tmp_path: Path, num_threads: int) -> None:
    save_tiny(tmp_path, "Mixtral", num_local_experts=3, num_experts_per_tok=2, hidden_size=64, intermediate_size=160)
    whole, layered = both(tmp_path, "bfloat16", num_threads=num_threads)
    traces = []
    for runner, chunk in ((whole, 1 << 20), (whole, 3), (layered, 1 << 20)):  # 88 rows at once, or 12
        driver = Driver(runner)
        traces.append(generated(driver, [driver.stream(prompt) for prompt in PROMPTS], chunk))
    assert traces[0] == traces[1] == traces[2]


class Counter(TorchDispatchMode):
    """Counts what may give Python's lock away: operators of torch, and calls of the C++ kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.count += 1
            return function(*args)

        return call


def handoffs_of_a_decode_step(path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> int:
    counter, library = Counter(), load_native()
    for name in ("plan", "attention", "rms_norm", "gated", "linear", "argmax", "forward", "route", "sigmoid"):
        monkeypatch.setattr(library, name, counter.counting(getattr(library, name)))
    monkeypatch.setattr("stratos.engine.runner.kernels.load_native", lambda name: library)
    driver = Driver(load_runner(path, **settings))
    streams = [driver.stream(prompt) for prompt in PROMPTS]
    driver.generate(streams, 2)
    counter.count = 0
    with counter:
        driver.generate(streams, 3)
    return counter.count


@pytest.mark.parametrize(("prefix", "changes"), [("Llama", {}), ("Mixtral", {"num_local_experts": 4})])
def test_a_decode_step_gives_the_lock_away_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, changes: dict[str, Any]
) -> None:
    save_tiny(tmp_path, prefix, num_hidden_layers=8, **changes)
    both(tmp_path, "float32")
    assert handoffs_of_a_decode_step(tmp_path, monkeypatch) == NUM_HANDOFFS
    assert handoffs_of_a_decode_step(tmp_path, monkeypatch, whole_step=False) > 50 * NUM_HANDOFFS
