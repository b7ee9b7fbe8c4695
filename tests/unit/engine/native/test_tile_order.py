"""Sums in the order of the tile instruction: what the manual says, by vectors, and by tiles where there are some."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stratos.engine.layers.native_linear import NativeLinear
from stratos.engine.native import library as library_module
from stratos.engine.native.isa import INSTRUCTION_SETS
from stratos.engine.native.library import NativeLibraryUnusable, TilesRefused, load_native
from tests.support.reference.native_kernels import TILE_SETS, native_library

SMALLEST_NORMAL = 2.0**-126
MAGNITUDES = {"ordinary": (-3, 4), "cancelling": (-20, 20), "denormal": (-66, -60), "tiny-operands": (-133, 10)}
"""Exponents of the operands; products of two may be denormal, and so may operands be."""
needs_twin = pytest.mark.skipif(not TILE_SETS, reason="written for AVX512-BF16 and AMX")
needs_tiles = pytest.mark.skipif("amx" not in TILE_SETS, reason="this processor has no tiles")


def rounded(exact: np.ndarray) -> np.ndarray:
    """To float32, to nearest even, denormal results as zero.

    A float64 holds the sum of a float32 and a product of two bfloat16 exactly, or so far from a tie that rounding
    twice is rounding once.
    """
    with np.errstate(over="ignore"):
        is_small = np.abs((exact * 2.0**64).astype(np.float32)) < SMALLEST_NORMAL * 2.0**64
        return np.where(is_small, np.copysign(0.0, exact), exact).astype(np.float32)


def manual(x: Tensor, weight: Tensor) -> np.ndarray:
    """x weight^T as the manual of TDPBF16PS has it: in steps of 32, even and odd products apart."""
    operands = []
    for matrix in (x, weight):
        padded = np.zeros((matrix.shape[0], -(-matrix.shape[1] // 32) * 32))
        padded[:, : matrix.shape[1]] = matrix.double().numpy()
        operands.append(np.where(np.abs(padded) < SMALLEST_NORMAL, 0.0, padded))
    rows, columns = operands
    total = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for begin in range(0, rows.shape[1], 32):
        halves = np.zeros((2, *total.shape), dtype=np.float32)
        for i in range(32):
            product = rows[:, None, begin + i] * columns[None, :, begin + i]
            halves[i % 2] = rounded(product + halves[i % 2].astype(np.float64))
        step = rounded(halves[0].astype(np.float64) + halves[1])
        total = rounded(total.astype(np.float64) + step)
    return total


def operands(name: str, rows: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    low, high = MAGNITUDES[name]
    exponents = torch.randint(low, high, (rows, size), generator=generator)
    return torch.ldexp(torch.randn(rows, size, generator=generator, dtype=torch.float64), exponents).bfloat16()


def products(name: str, weight: Tensor, x: Tensor) -> Tensor:
    return NativeLinear(native_library(name), weight, None, is_float=True)(x)


def bits(values: Tensor) -> Tensor:
    return values.view(torch.int32)


@needs_twin
@pytest.mark.parametrize("name", TILE_SETS)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("size", [1, 31, 32, 80])
def test_sums_are_those_of_the_manual(name: str, magnitude: str, size: int) -> None:
    x, weight = operands(magnitude, 19, size, 1), operands(magnitude, 70, size, 2)
    expected = torch.from_numpy(manual(x, weight))
    assert torch.equal(bits(products(name, weight, x)), bits(expected))
    assert torch.equal(bits(products(name, weight, x[:1])), bits(expected[:1]))


@needs_twin
def test_another_order_is_told_apart() -> None:
    x, weight = operands("ordinary", 19, 96, 1), operands("ordinary", 70, 96, 2)
    found = products(TILE_SETS[0], weight, x)
    shuffled = torch.arange(96).view(-1, 2).flip(1).reshape(-1)  # even and odd exchanged: the same sums
    assert torch.equal(found, products(TILE_SETS[0], weight[:, shuffled], x[:, shuffled]))
    assert not torch.equal(found, products(TILE_SETS[0], weight.flip(1), x.flip(1)))
    assert not torch.equal(found, products("avx512-bf16", weight, x))


@needs_tiles
@pytest.mark.parametrize(("out_features", "in_features"), [(130, 96), (65, 51), (64, 600)])
def test_tiles_and_vectors_agree_for_every_number_of_rows(out_features: int, in_features: int) -> None:
    weight, x = operands("cancelling", out_features, in_features, 3), operands("cancelling", 512, in_features, 4)
    tiles, vectors = (NativeLinear(native_library(name), weight, None, is_float=True) for name in ("amx", "amx-twin"))
    expected, before = vectors(x), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for count in range(1, 513):
                assert torch.equal(bits(tiles(x[512 - count :])), bits(expected[512 - count :])), count
            for count in (*range(1, 40), 100, 512):
                assert torch.equal(bits(vectors(x[:count])), bits(expected[:count])), count
    finally:
        torch.set_num_threads(before)


@needs_tiles
def test_tiles_and_vectors_lose_the_same_elements_to_nan_and_infinity() -> None:
    source = torch.Generator().manual_seed(5)
    weight, x = (torch.randint(-(1 << 15), 1 << 15, (n, 64), generator=source).short() for n in (64, 200))
    found = [products(name, weight.view(torch.bfloat16), x.view(torch.bfloat16)) for name in ("amx", "amx-twin")]
    assert 0 < int(found[0].isnan().sum()) < found[0].numel()
    assert torch.equal(found[0].nan_to_num(nan=7.0, posinf=8.0), found[1].nan_to_num(nan=7.0, posinf=8.0))


class _Library:
    """Stands for a loaded one; tiles are refused."""

    def __init__(self, path: Path, isa: str) -> None:
        if isa == "amx":
            raise TilesRefused("refused")
        self.isa = isa


def test_where_tiles_are_refused_the_next_build_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for isa in INSTRUCTION_SETS:
        (tmp_path / isa.file_name).touch()
    monkeypatch.setattr(library_module, "NativeLibrary", _Library)
    flags = frozenset(itertools.chain.from_iterable(isa.cpu_flags for isa in INSTRUCTION_SETS))
    monkeypatch.setattr(library_module, "cpu_flags", lambda: flags)
    assert load_native(tmp_path).isa == "avx512-bf16"
    assert "computing without tiles" in caplog.text
    assert load_native(tmp_path, "avx512").isa == "avx512"
    with pytest.raises(TilesRefused):
        load_native(tmp_path, "amx")
    monkeypatch.setattr(library_module, "cpu_flags", lambda: flags - {"amx_bf16"})
    with pytest.raises(NativeLibraryUnusable, match="no amx"):
        load_native(tmp_path, "amx")
