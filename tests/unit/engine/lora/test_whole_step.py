"""Steps with adapters in one call of the C++ kernels: the bits of the pass operation by operation, in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratos.core.files.adapter_files import AdapterFiles
from stratos.engine.runner.forward import LayeredForward
from stratos.engine.runner.native_forward import NativeForward
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.exact_traces import Trace, generated, using_build
from tests.support.reference.lora_features import EVERYTHING, FEATURES, save
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import save_tiny
from tests.support.worlds.plan_driver import Driver, load_runner

DTYPES = ("float32", "bfloat16", "float16")
LENGTHS = (41, 1, 16, 30, 75, 5)
Job = tuple[list[int], str]
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[AdapterFiles]]:
    """A model with odd sizes and biases, and adapters of every feature and of many ranks."""
    folder = tmp_path_factory.mktemp("adapters")
    model = save_tiny(folder / "model", "Qwen2", tie_word_embeddings=False)
    wanted: dict[str, dict[str, Any]] = {**FEATURES, "rank-70": {"target_modules": EVERYTHING, "r": 70}}
    wanted |= {f"rank-{rank}": {"target_modules": EVERYTHING, "r": rank} for rank in (1, 16, 33)}
    return folder / "model", [
        save(folder / name, model, seed=index, **wanted[name]) for index, name in enumerate(wanted)
    ]


def loaded(world: tuple[Path, list[AdapterFiles]], **settings: Any) -> TorchRunner:
    path, adapters = world
    runner = load_runner(path, max_resident_adapters=len(adapters), kv_pool_bytes=8 << 20, **settings)
    for files in adapters:
        runner.load_adapter(files)
    return runner


def jobs_of(adapters: list[AdapterFiles]) -> list[Job]:
    """Two streams of each adapter and some of the base model, prompts of different lengths."""
    digests = [files.digest for files in adapters for _ in range(2)] + [""] * 3
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(len(digests))]
    return [([(i * 37 + 11 * k) % 97 for i in range(lengths[k])], digest) for k, digest in enumerate(digests)]


def run(runner: TorchRunner, jobs: list[Job], chunk: int) -> list[Trace]:
    driver = Driver(runner)
    return generated(driver, [driver.stream(prompt, adapter=digest) for prompt, digest in jobs], chunk)


def whole_steps(monkeypatch: pytest.MonkeyPatch, runner: TorchRunner, jobs: list[Job], chunk: int) -> list[Trace]:
    """Run jobs on a runner whose steps never fall back."""
    if not isinstance(runner.forward, NativeForward):
        pytest.skip("the kernels are not built")
    with monkeypatch.context() as patch:
        patch.delattr(LayeredForward, "run")
        return run(runner, jobs, chunk)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("build", NATIVE_SETS)
def test_every_adapter_has_the_bits_of_the_layered_pass(
    world: tuple[Path, list[AdapterFiles]], monkeypatch: pytest.MonkeyPatch, build: str, dtype: str
) -> None:
    jobs = jobs_of(world[1])
    with using_build(build):
        whole, layered = loaded(world, dtype=dtype), loaded(world, dtype=dtype, whole_step_adapters=False)
    assert whole.info.identity.numerics_id == layered.info.identity.numerics_id
    assert whole_steps(monkeypatch, whole, jobs, 1 << 20) == run(layered, jobs, 1 << 20)
    assert whole_steps(monkeypatch, whole, jobs[::3], 11) == run(layered, jobs[::3], 11)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_its_bits_alone_and_in_company(
    world: tuple[Path, list[AdapterFiles]], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    runner, jobs = loaded(world, dtype=dtype), jobs_of(world[1])
    together = whole_steps(monkeypatch, runner, jobs, 1 << 20)
    for index in range(0, len(jobs), 5):
        assert whole_steps(monkeypatch, runner, [jobs[index]], 9) == [together[index]]


def test_several_threads_give_the_same_bits(
    world: tuple[Path, list[AdapterFiles]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, traces = jobs_of(world[1])[::4], []
    for num_threads in (1, 3):
        runner = loaded(world, dtype="bfloat16", num_threads=num_threads)
        traces.append(whole_steps(monkeypatch, runner, jobs, 1 << 20))
    assert traces[0] == traces[1]


@pytest.mark.parametrize("quantization", ["int8", "int4", "llm-int8"])
def test_adapters_lie_on_weights_that_stay_codes(
    world: tuple[Path, list[AdapterFiles]], monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    jobs = jobs_of(world[1])[::3]
    settings = {"dtype": "bfloat16", "quantization": quantization}
    traces = whole_steps(monkeypatch, loaded(world, **settings), jobs, 1 << 20)
    assert traces == run(loaded(world, **settings, whole_step=False), jobs, 1 << 20)


def test_adapters_that_are_not_sorted_take_the_layered_pass(
    world: tuple[Path, list[AdapterFiles]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(world[1])[:8][::-1] + jobs_of(world[1])[:8]
    scattered = run(loaded(world, sorted_adapters=False), jobs, 1 << 20)
    assert scattered == whole_steps(monkeypatch, loaded(world), jobs, 1 << 20)
