"""What the numerics id promises: bits that may depend on the number of threads are named with it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stratos.engine import revisions
from stratos.engine.layers import linear
from stratos.engine.runner.numerics import promise
from stratos.engine.runner.torch_runner import TorchRunner
from tests.support.reference.exact_traces import INEXACT, KERNELS, alone
from tests.support.reference.tiny_models import FAMILIES, save_tiny
from tests.support.worlds.engine_settings import runner_config
from tests.support.worlds.plan_driver import load_runner

CPU = torch.device("cpu")
OURS = SimpleNamespace(is_invariant_by_design=True, libraries=())
LIBRARY = SimpleNamespace(is_invariant_by_design=False, libraries=("torch",))
PROMPT = [(i * 37 + 11) % 97 for i in range(20)]


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save_tiny(path, "Llama")
    return path


def numerics_of(path: Path, num_threads: int, **settings: Any) -> str:
    return load_runner(path, num_threads=num_threads, **settings).info.identity.numerics_id


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_library_kernel_is_enough_to_name_the_threads(place: int) -> None:
    kernels = [OURS, OURS, OURS]
    assert promise(tuple(kernels), CPU, is_exact=True) == ("exact",)
    kernels[place] = LIBRARY
    torch.set_num_threads(2)
    assert promise(tuple(kernels), CPU, is_exact=True) == ("exact", "threads-2")
    assert promise(tuple(kernels), CPU, is_exact=False) == ("batched",)
    assert promise(tuple(kernels), torch.device("cuda"), is_exact=True) == ("exact",)


class ThreadedProduct:
    """Stands for a library that shares a sum out among its threads, at a shape that no trial at start has."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        out = F.linear(x, self._weight, self._bias)
        return out + 1e-3 * (torch.get_num_threads() - 1) if bool((x[0] != x[-1]).any()) else out


def test_products_that_depend_on_threads_give_another_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "PlainLinear", ThreadedProduct)
    ids, traces = [], []
    for threads in (1, 2):
        runner = load_runner(folder, num_threads=threads, **KERNELS["torch-unpacked"])
        torch.set_num_threads(threads)
        ids.append(runner.info.identity.numerics_id)
        traces.append(alone(runner, PROMPT))
    assert traces[0] != traces[1]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kernels", ["torch", "onednn", "torch-ops", "torch-unpacked"])
def test_every_way_with_a_library_kernel_names_the_threads(folder: Path, kernels: str, dtype: str) -> None:
    one, two = (numerics_of(folder, threads, dtype=dtype, **KERNELS[kernels]) for threads in (1, 2))
    assert one.endswith("+exact+threads-1")
    assert two == one.replace("threads-1", "threads-2")


@pytest.mark.parametrize("kernels", ["best", "layered"])
def test_our_own_kernels_promise_the_same_bits_with_any_number(folder: Path, kernels: str) -> None:
    one, two = (numerics_of(folder, threads, **KERNELS[kernels]) for threads in (1, 2))
    if "+gemm-" not in one:
        pytest.skip("the C++ kernels are not built")
    assert one == two
    assert one.endswith("+exact")
    assert numerics_of(folder, 1, exact=False) == one, "the switch changes nothing"
    mixed = numerics_of(folder, 1, exact=False, fused_ops=False)
    assert mixed.endswith("+batched")


def test_versions_stand_in_the_id_where_a_library_computes(folder: Path, tmp_path: Path) -> None:
    version = f"/torch-{torch.__version__}/"
    own = numerics_of(folder, 1)
    if "+gemm-" not in own:
        pytest.skip("the C++ kernels are not built")
    assert own.startswith("cpu/float32/native-")
    assert re.fullmatch(r"[^+]+\.r1\+[^+]+\.r1\+gemm-[^+]+\.r1\+rope-[0-9a-f]{12}\+exact", own.rpartition("/")[2])
    for kernels in ("torch", "onednn", "torch-ops"):
        assert version in numerics_of(folder, 1, **KERNELS[kernels])
    prefix, changes = FAMILIES["mixtral"]
    save_tiny(tmp_path, prefix, **changes)
    assert version not in numerics_of(tmp_path, 1)
    assert version in numerics_of(tmp_path, 1, fused_ops=False), "torch chooses the experts"


def test_a_revision_and_the_rotary_table_are_part_of_the_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = numerics_of(folder, 1)
    monkeypatch.setattr(revisions, "REVISIONS", dict.fromkeys(revisions.REVISIONS, 2))
    assert numerics_of(folder, 1) == re.sub(r"\.r1\b", ".r2", before)
    monkeypatch.undo()
    monkeypatch.setattr(Tensor, "cos", lambda angles: torch.sin(angles + math.pi / 2))  # another library's last bits
    other = numerics_of(folder, 1)
    assert other != before
    assert re.sub("rope-[0-9a-f]+", "", other) == re.sub("rope-[0-9a-f]+", "", before)


def test_without_exact_mode_nothing_is_promised_and_no_thread_named(folder: Path) -> None:
    assert numerics_of(folder, 1, **INEXACT) == numerics_of(folder, 2, **INEXACT)


def test_a_named_number_does_not_change_while_the_process_lives(folder: Path) -> None:
    torch.set_num_threads(2)
    settings = {"block_size": 4, "kv_pool_bytes": 2 << 20, **KERNELS["torch-unpacked"]}
    runner = TorchRunner.load(runner_config(model_path=folder, **settings))
    assert runner.info.identity.numerics_id.endswith(f"+exact+threads-{torch.get_num_threads()}")
    assert runner.has_fixed_threads
