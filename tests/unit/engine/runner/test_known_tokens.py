"""Known tokens, and weights that are read again, show damaged memory; load, adapters and drafts show nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stratos.core.files.adapter_files import read_adapter_files
from stratos.core.files.known_digests import KNOWN_DIGESTS_NAME, read_known_digest
from stratos.engine.core import EngineCore
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.runner.weight_sums import WeightSums, tensors_of
from stratos.engine.settings import SpeculationConfig
from stratos.engine.speculation.making import make_proposer
from tests.support.paths import MODELS
from tests.support.reference.native_kernels import NATIVE_SETS
from tests.support.reference.tiny_models import FAMILIES, save_adapter, save_tiny
from tests.support.worlds.engine_settings import scheduler_config
from tests.support.worlds.mixed_requests import PARAMS, mixed_requests
from tests.support.worlds.plan_driver import load_runner

MATRICES = ("qkv", "output", "gate_up", "down")
RUNNERS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16-layered": {"dtype": "bfloat16", "whole_step": False},
    "int8-weights": {"quantization": "int8"},
    "int8-kv": {"kv_dtype": "int8"},
}
ENGINES: dict[str, dict[str, Any]] = {
    "alone": {},
    "overlap": {"overlap": True, "speculation": SpeculationConfig(method="off")},
    "drafts": {"speculation": SpeculationConfig(method="ngram", is_adaptive=False)},
}
ALL = 1 << 40
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and an adapter of it."""
    model, adapter = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("adapter")
    save_adapter(adapter, save_tiny(model, tie_word_embeddings=False), rank=3, targets=["q_proj", "down_proj"], seed=1)
    return model, adapter


def storage_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def weights_of(runner: TorchRunner) -> dict[str, Tensor]:
    return dict(tensors_of("model", runner.decoder))


def flipped(tensor: Tensor, word: int, word_bytes: int, bit: int) -> Iterator[None]:
    """Flips one bit, and flips it back."""
    memory, place = storage_of(tensor), word * word_bytes + bit // 8
    memory[place] ^= 1 << bit % 8
    yield
    memory[place] ^= 1 << bit % 8


def used_words(tensor: Tensor, word_bytes: int, dice: random.Random, count: int) -> list[int]:
    """Words that are not 0, as padding is."""
    words = storage_of(tensor).view(-1, word_bytes).any(1).nonzero().flatten().tolist()
    return dice.sample(words, count)


@pytest.mark.parametrize("case", ["float32", "bfloat16-layered"])
def test_a_flipped_sign_exponent_or_upper_mantissa_bit_of_any_matrix_or_norm_changes_the_digest(
    folders: tuple[Path, Path], case: str
) -> None:
    runner, dice = load_runner(folders[0], **RUNNERS[case]), random.Random(case)
    word_bytes, bits = (4, (31, 30, 25, 22, 21)) if case == "float32" else (2, (15, 14, 9, 6))
    sound = runner.probe()
    found = num_flips = 0
    for name, tensor in weights_of(runner).items():
        if not name.endswith("packed") and not name.endswith(("attention", "mlp", "norm")):
            continue
        for word in used_words(tensor, word_bytes, dice, 3):
            for bit in bits:
                for _ in flipped(tensor, word, word_bytes, bit):
                    found += runner.probe() != sound
                    num_flips += 1
                assert runner.probe() == sound, "it is the flip alone"
    assert num_flips > 100
    assert found == num_flips


@pytest.mark.parametrize("case", RUNNERS)
def test_one_poisoned_number_in_a_kept_block_changes_the_digest(folders: tuple[Path, Path], case: str) -> None:
    runner = load_runner(folders[0], **RUNNERS[case])
    sound, pages = runner.probe(), runner.pages
    kept = pages.tensor[pages.num_blocks]
    number = kept.view(torch.uint8).flatten()
    place = int(number.nonzero()[3])
    number[place] ^= 0x40
    assert runner.probe() != sound
    number[place] ^= 0x40
    assert runner.probe() == sound


@pytest.mark.parametrize("case", RUNNERS)
def test_every_bit_of_every_weight_is_found_by_reading_it_again(folders: tuple[Path, Path], case: str) -> None:
    runner, dice = load_runner(folders[0], **RUNNERS[case]), random.Random(case)
    weights = {name: tensor for name, tensor in weights_of(runner).items() if tensor.numel()}
    assert {name.split(".")[-2] for name in weights} >= set(MATRICES)
    for name, tensor in weights.items():
        sums, num_bytes = WeightSums({"model": runner.decoder}), storage_of(tensor).numel()
        sums.check(ALL)
        for _ in flipped(tensor, dice.randrange(num_bytes), 1, dice.randrange(8)):
            assert sums.check(ALL).damaged == (name,)
            assert sums.check(ALL).damaged == (), "it is told once"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_each_weight_in_a_librarys_own_layout_is_read_once() -> None:
    weights = [torch.ones(64, 64).mul(number).to_mkldnn() for number in range(8)]
    sums = WeightSums({"model": [*weights, weights[0]]})
    assert sums.check(ALL).num_bytes == 8 * 64 * 64 * 4


def test_a_pass_is_read_in_parts_and_each_byte_once(folders: tuple[Path, Path]) -> None:
    runner = load_runner(folders[0])
    sums = WeightSums({"model": runner.decoder})
    checks = [sums.check(sums.num_bytes // 3)]
    while not checks[-1].num_passes:
        checks.append(sums.check(sums.num_bytes // 3))
    assert sum(check.num_bytes for check in checks) >= sums.num_bytes
    assert sums.check(ALL).num_bytes == sums.num_bytes
    assert len(checks) >= 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", RUNNERS)
def test_a_sound_engine_under_load_shows_nothing_and_no_token_of_it_changes(
    folders: tuple[Path, Path], case: str, engine: str
) -> None:
    outcomes = []
    for is_probed in (True, False):
        runner = load_runner(folders[0], **RUNNERS[case])
        files = read_adapter_files(folders[1])
        runner.load_adapter(files)
        config = scheduler_config(max_num_batched_tokens=17, **ENGINES[engine])
        core = EngineCore(runner, config, proposer=make_proposer(config, runner, None))
        for request in mixed_requests(PARAMS, 10, n=2, digests=("", files.digest)):
            core.add(request)
        digests, damaged, tokens = set[bytes](), list[str](), list[Any]()
        while core.has_work:
            if is_probed:
                digests.add(core.probe())
                damaged += core.check_weights(1 << 16).damaged
            tokens += [(output.key, output.index, output.token_ids) for output in core.step().outputs]
        assert len(digests) == is_probed
        assert not damaged
        assert core.status().blocks.allocated == 0
        outcomes.append(tokens)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("family", ["mixtral", "gpt-oss", "qwen3-mixed-windows"])
def test_experts_sinks_and_windows_are_read_too(tmp_path: Path, family: str) -> None:
    prefix, changes = FAMILIES[family]
    save_tiny(tmp_path, prefix, **changes)
    runner = load_runner(tmp_path)
    assert runner.probe() == runner.probe()
    assert runner.check_weights(ALL).num_bytes > 0
    names = " ".join(weights_of(runner))
    assert ("experts" in names) == (family != "qwen3-mixed-windows")


def test_workers_alike_give_the_same_digest_and_others_another(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    save_tiny(tmp_path, tie_word_embeddings=False, initializer_range=0.1)
    first, again, other = load_runner(folders[0]), load_runner(folders[0]), load_runner(tmp_path)
    assert first.probe() == again.probe()
    assert first.probe() != other.probe()


@pytest.mark.parametrize(("model", "dtype"), [("base", "float32"), ("base", "bfloat16"), ("tools", "float32")])
def test_a_shipped_model_gives_the_digests_that_it_brings(model: str, dtype: str) -> None:
    folder = MODELS / model
    runner = load_runner(folder, dtype=dtype)
    numerics = runner.info.identity.numerics_id
    (rope,) = (part for part in numerics.split("+") if part.startswith("rope-"))
    if rope not in (folder / KNOWN_DIGESTS_NAME).read_text():
        pytest.skip("another library of mathematics made the rotary table")
    refresh = f"python -m scripts.golden.known_digests models/{model}, where a revision or the weights have changed"
    assert read_known_digest(folder, runner.info.identity) == runner.probe(), refresh


def test_who_promises_no_bits_is_not_probed(folders: tuple[Path, Path]) -> None:
    assert load_runner(folders[0]).info.can_probe
    assert not load_runner(folders[0], exact=False, native_kernels=False).info.can_probe
