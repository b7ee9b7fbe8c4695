"""A runner that sleeps gives its memory back, and computes the same bits when it is awake again."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.clock import SystemClock
from stratos.common.errors import FeatureUnavailable, InvalidCheckpoint
from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.requests.records import RequestKey
from stratos.engine.core import EngineCore
from stratos.engine.memory.weight_memory import WeightMemory, give_back, kept_copy
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.settings import SpeculationConfig
from stratos.engine.speculation.making import make_proposer
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import FAMILIES, save_adapter, save_tiny
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.mixed_requests import PARAMS, mixed_requests
from tests.support.worlds.plan_driver import Driver, load_runner

WIDE = {"hidden_size": 96, "intermediate_size": 512, "vocab_size": 512}
"""So large that weights have whole pages of memory."""
RUNNERS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "layered": {"dtype": "bfloat16", "whole_step": False},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int4+head": {"quantization": "int4+head"},
    "int8-kv": {"kv_dtype": "int8"},
}
PROMPT = [(i * 29 + 3) % 97 for i in range(22)]
ALL = 1 << 40
needs_kernels = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and an adapter of it."""
    model, adapter = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("adapter")
    made = save_tiny(model, tie_word_embeddings=False, **WIDE)
    save_adapter(adapter, made, rank=3, targets=["q_proj", "down_proj"], seed=1)
    return model, adapter


def generated(runner: TorchRunner, **spec: Any) -> list[int]:
    driver = Driver(runner, seed=9)
    stream = driver.stream(PROMPT, **spec)
    driver.generate([stream], 12)
    return stream.tokens


@needs_kernels
@pytest.mark.parametrize("case", RUNNERS)
def test_bits_are_the_same_after_waking(folders: tuple[Path, Path], case: str) -> None:
    runner = load_runner(folders[0], max_resident_adapters=2, **RUNNERS[case])
    files = read_adapter_files(folders[1])
    runner.load_adapter(files)
    before = generated(runner), generated(runner, adapter=files.digest), runner.probe()
    sums = runner.check_weights(ALL)
    for _ in range(2):
        assert runner.sleep() > runner.pages.tensor.nbytes // 2
        assert not runner.pages.tensor.view(torch.uint8).any(), "KV of before could be read"
        assert torch.count_nonzero(runner.decoder.embedding) < runner.decoder.embedding.numel() // 4
        runner.wake()
        assert (generated(runner), generated(runner, adapter=files.digest), runner.probe()) == before
    again = runner.check_weights(ALL)
    assert (again.num_bytes, again.num_passes, again.damaged) == (sums.num_bytes, 2, ())


@needs_kernels
@pytest.mark.parametrize("name", ["llama", "qwen2-mixed-windows", "qwen3-moe", "gemma3", "gpt-oss"])
def test_models_of_all_makes_sleep(tmp_path: Path, name: str) -> None:
    family, options = FAMILIES[name]
    save_tiny(tmp_path, family, **options)
    runner = load_runner(tmp_path)
    before = generated(runner)
    runner.sleep()
    runner.wake()
    assert generated(runner) == before


@needs_kernels
@pytest.mark.parametrize("method", ["self", "ngram"])
def test_an_engine_with_drafts_goes_on_with_the_same_tokens(folders: tuple[Path, Path], method: str) -> None:
    def engine() -> EngineCore:
        speculation = SpeculationConfig(method=method, is_adaptive=False)  # type: ignore[arg-type]
        config = scheduler_config(speculation=speculation)
        runner = load_runner(folders[0], kv_pool_bytes=1 << 22)
        draft = load_runner(folders[0], quantization="int4") if method == "self" else None
        return EngineCore(runner, config, SystemClock(), make_proposer(config, runner, draft))

    def run(core: EngineCore) -> dict[tuple[str, int], list[int]]:
        tokens: dict[tuple[str, int], list[int]] = {}
        for request in mixed_requests(PARAMS, 6):
            core.add(request)
        while core.has_work:
            for output in core.step().outputs:
                tokens.setdefault((output.key.request_id, output.index), []).extend(output.token_ids)
        return tokens

    core = engine()
    before = run(core)
    assert before
    assert core.sleep() > 0
    core.verify()
    core.wake()
    assert run(core) == before
    core.verify()


@needs_kernels
def test_drafts_that_cannot_sleep_leave_the_engine_as_it_was(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = scheduler_config(speculation=SpeculationConfig(method="ngram"))
    runner = load_runner(folders[0], kv_pool_bytes=1 << 22)
    proposer = make_proposer(config, runner, None)
    assert proposer is not None

    def refuse() -> int:
        raise FeatureUnavailable("host memory is short")

    monkeypatch.setattr(proposer, "sleep", refuse)
    core, before = EngineCore(runner, config, SystemClock(), proposer), runner.probe()
    prompt = mixed_requests(PARAMS, 1)[0]
    core.add(prompt)
    while core.has_work:
        core.step()
    with pytest.raises(FeatureUnavailable):
        core.sleep()
    assert runner.probe() == before
    assert not core.inspect().cached_blocks, "pages hold zeros"
    core.add(dataclasses.replace(prompt, key=RequestKey("again", 0)))


@needs_kernels
def test_files_that_changed_in_the_meantime_wake_nothing(tmp_path: Path) -> None:
    save_tiny(tmp_path, **WIDE)
    runner = load_runner(tmp_path)
    runner.sleep()
    (weights,) = tmp_path.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    stat = weights.stat()
    weights.write_bytes(content)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the time of the change stays: it cannot be set
    with pytest.raises(InvalidCheckpoint, match="have changed"):
        runner.wake()
    weights.unlink()
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        runner.wake()


def test_weights_of_a_library_cannot_sleep(folders: tuple[Path, Path]) -> None:
    runner = load_runner(folders[0], native_kernels=False, native_gemm=False)
    before = generated(runner)
    with pytest.raises(FeatureUnavailable):
        runner.sleep()
    assert generated(runner) == before


def test_memory_is_given_back_and_found_again() -> None:
    memory, pieces = WeightMemory(), [torch.arange(n, dtype=torch.int16) for n in (10, 100_000, 3_000_000)]
    with memory.noting():
        copies = [kept_copy(piece, memory) for piece in pieces]
    kept_copy(pieces[0], memory)  # outside: not the model's
    places = [copy.data_ptr() for copy in copies]
    assert memory.num_bytes == sum(piece.nbytes for piece in pieces)
    assert memory.give_back() > 0.9 * memory.num_bytes
    assert not copies[2][5_000:-5_000].any(), "pages of the edges may stay"
    with memory.filling():
        filled = [kept_copy(piece, memory) for piece in pieces]
    assert [copy.data_ptr() for copy in filled] == places
    assert all(torch.equal(copy, piece) for copy, piece in zip(copies, pieces, strict=True))


def test_an_adapter_that_is_laid_out_while_weights_are_filled_takes_none_of_their_memory() -> None:
    memory = WeightMemory()
    with memory.noting():
        pieces = [memory.take(8), memory.take(8)]
    with memory.filling(), ThreadPoolExecutor(1) as other:
        filled = [memory.take(8)]
        strange = other.submit(memory.take, 8).result()
        filled.append(memory.take(8))
    assert [piece.data_ptr() for piece in filled] == [piece.data_ptr() for piece in pieces]
    assert strange.data_ptr() not in {piece.data_ptr() for piece in pieces}


@pytest.mark.parametrize("sizes", [(8, 17), (8,), (8, 16, 1)])
def test_other_weights_than_were_loaded_are_refused(sizes: tuple[int, ...]) -> None:
    memory = WeightMemory()
    with memory.noting():
        memory.take(8), memory.take(16)
    with pytest.raises(InvalidCheckpoint), memory.filling():
        list(map(memory.take, sizes))


def test_pages_of_neighbours_stay() -> None:
    whole = torch.ones(40_000, dtype=torch.uint8)
    assert give_back(whole[5_000:35_000]) in range(20_000, 30_001)
    assert whole[:5_000].all()
    assert whole[35_000:].all()
