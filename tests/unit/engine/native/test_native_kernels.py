"""The C++ kernels against torch, on shapes that leave tails, and what happens where they cannot be had."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import torch

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, key_unit
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.projections import QkNorm
from stratos.engine.layers.native_ops import NativeOps
from stratos.engine.layers.ops import TorchOps
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native import build, isa
from stratos.engine.native.library import NativeLibrary, NativeLibraryUnusable, load_native
from stratos.engine.runner import kernels
from stratos.engine.settings import RunnerConfig
from tests.support.pairwise import pairwise
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
pytestmark = pytest.mark.skipif(not NATIVE_SETS, reason="written for AVX2 and AVX-512")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("size", [1, 7, 16, 203, 1024])
def test_layer_operations_equal_torch(name: str, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    ours, reference = NativeOps(native_library(name), dtype), TorchOps()
    x, residual, weight = (
        (torch.randn(5, size) * 3).to(dtype),
        torch.randn(5, size).to(dtype),
        torch.rand(size).to(dtype),
    )
    tolerance = {"rtol": max(torch.finfo(dtype).eps, 1e-5), "atol": 1e-6 if dtype == torch.float32 else 1e-3}
    torch.testing.assert_close(ours.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), **tolerance)
    sums = residual.clone(), residual.clone()
    normed = [ops.add_rms_norm(x, s, weight, 1e-5) for ops, s in zip((ours, reference), sums, strict=True)]
    torch.testing.assert_close(*normed, **tolerance)
    assert torch.equal(*sums)
    gate_up = (torch.randn(5, 2 * size) * 40).to(dtype)
    torch.testing.assert_close(ours.silu_mul(gate_up), reference.silu_mul(gate_up), rtol=2**-7, atol=1e-5)


def spans(shapes: list[tuple[int, int]], block_size: int, num_blocks: int) -> list[RowSpan]:
    free, begin, rows = random.Random(1).sample(range(num_blocks), num_blocks), 0, []
    for start, count in shapes:
        rows.append(RowSpan(begin, count, start, tuple(free.pop() for _ in range(-(-(start + count) // block_size)))))
        begin += count
    return rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(
    ("dim", "kv_heads", "group", "block", "window", "has_norm"),
    [(64, 4, 4, 16, None, False), (80, 1, 7, 16, 40, True), (6, 2, 3, 5, 9, True), (96, 2, 1, 7, None, False)],
)
def test_attention_with_rotation_and_norm_equals_torch(
    name: str, dtype: torch.dtype, dim: int, kv_heads: int, group: int, block: int, window: int | None, has_norm: bool
) -> None:
    torch.manual_seed(0)
    geometry = KvGeometry(
        num_layers=2, num_kv_heads=kv_heads, head_dim=dim, block_size=block, element_bytes=dtype.itemsize
    )
    pools = [KvPages(geometry, 260, dtype, torch.device("cpu")) for _ in range(2)]
    pools[0].tensor.normal_()
    pools[1].tensor.copy_(pools[0].tensor)
    rows = spans([(0, 1), (63, 1), (64, 1), (3, 70), (199, 2), (150, 90), (8, 1)], block, 260)
    num_tokens, heads = rows[-1].begin + rows[-1].num_tokens, kv_heads * group
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.rand(num_tokens, dim // 2) * 6
    rope = RopeRows(angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1))
    norm = QkNorm((torch.rand(heads + kv_heads, dim) + 0.5).to(dtype), 1e-6) if has_norm else None
    results = []
    for kernel in (
        NativePagedAttention(native_library(name), pools[0], heads, [window, None]),
        TorchPagedAttention(pools[1], heads, [window, None]),
    ):
        results.append([kernel.forward(i, qkv.clone(), rope, norm, kernel.prepare(rows)) for i in range(2)])
    atol = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    tolerance = {"rtol": max(2 * torch.finfo(dtype).eps, 1e-5), "atol": atol}
    torch.testing.assert_close(pools[0].tensor, pools[1].tensor, **tolerance)
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, **tolerance)


PACKED = [(64, 4, 4, 16, None, False), (32, 4, 2, 32, 40, True), (128, 2, 7, 16, 9, True), (96, 1, 8, 48, 100, False)]
"""Size of a head, heads of KV, their group, block, window and whether there is a norm."""


@pytest.mark.parametrize(("shape", "name", "dtype", "threads"), pairwise(PACKED, list(NATIVE_SETS), DTYPES, [1, 2]))
def test_packed_keys_change_no_bit(
    name: str, dtype: torch.dtype, threads: int, shape: tuple[int, int, int, int, int | None, bool]
) -> None:
    dim, kv_heads, group, block, window, has_norm = shape
    torch.manual_seed(0)
    library, heads = native_library(name), kv_heads * group
    geometry = KvGeometry(
        num_layers=2, num_kv_heads=kv_heads, head_dim=dim, block_size=block, element_bytes=dtype.itemsize
    )
    unit, num_blocks = key_unit(library, geometry, dtype), 100
    assert unit > 0
    pools = [KvPages(geometry, num_blocks, dtype, torch.device("cpu"), form) for form in (0, unit)]
    everything = tuple(range(num_blocks)), KvRange(0, num_blocks * block, 0, 2)
    pools[0].tensor.normal_()
    pools[1].scatter(*everything, pools[0].gather(*everything))
    rows = spans([(0, 1), (63, 1), (64, 1), (3, 70), (199, 2), (150, 90), (8, 1), (500, 1)], block, num_blocks)
    num_tokens = rows[-1].begin + rows[-1].num_tokens
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.rand(num_tokens, dim // 2) * 6
    rope = RopeRows(angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1))
    norm = QkNorm((torch.rand(heads + kv_heads, dim) + 0.5).to(dtype), 1e-6) if has_norm else None
    results, before = [], torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for pages in pools:
            kernel = NativePagedAttention(library, pages, heads, [window, None])
            results.append([kernel.forward(i, qkv.clone(), rope, norm, kernel.prepare(rows)) for i in range(2)])
    finally:
        torch.set_num_threads(before)
    for plain, packed in zip(*results, strict=True):
        assert torch.equal(plain, packed)
    assert bytes(pools[0].gather(*everything)) == bytes(pools[1].gather(*everything))


def test_shapes_that_no_packed_page_can_have_stay_plain() -> None:
    library = native_library(NATIVE_SETS[0])
    shapes = {(64, 16): True, (64, 8): False, (64, 24): False, (80, 16): False, (6, 16): False}
    for (dim, block), is_packed in shapes.items():
        geometry = KvGeometry(num_layers=1, num_kv_heads=1, head_dim=dim, block_size=block, element_bytes=4)
        assert (key_unit(library, geometry, torch.float32) > 0) == is_packed


@pytest.mark.parametrize("name", NATIVE_SETS)
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(name: str) -> None:
    geometry = KvGeometry(num_layers=1, num_kv_heads=2, head_dim=16, block_size=4, element_bytes=4)
    rows, rope = spans([(0, 3), (0, 2)], 4, 20), RopeRows(torch.ones(5, 16), torch.zeros(5, 16))
    clean = torch.randn(5, 6 * 16)
    outputs = []
    for poison in (0.0, float("nan"), float("inf")):
        pages = KvPages(geometry, 20, torch.float32, torch.device("cpu"))
        kernel = NativePagedAttention(native_library(name), pages, 2, [None])
        qkv = clean.clone()
        qkv[:3] += poison
        outputs.append(kernel.forward(0, qkv, rope, None, kernel.prepare(rows)))
        assert bool(torch.isfinite(pages.tensor).all())
    assert torch.equal(outputs[0][3:], outputs[1][3:])
    assert torch.equal(outputs[0][3:], outputs[2][3:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_threads_do_not_change_a_bit(name: str, dtype: torch.dtype) -> None:
    geometry = KvGeometry(num_layers=1, num_kv_heads=2, head_dim=64, block_size=16, element_bytes=dtype.itemsize)
    rows, rope = spans([(0, 200), (90, 1)], 16, 40), RopeRows(torch.ones(201, 64), torch.zeros(201, 64))
    qkv = torch.randn(201, 10 * 64).to(dtype)
    outputs, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            pages = KvPages(geometry, 40, dtype, torch.device("cpu"))
            kernel = NativePagedAttention(native_library(name), pages, 6, [None])
            outputs.append(kernel.forward(0, qkv.clone(), rope, None, kernel.prepare(rows)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_the_fastest_supported_set_is_chosen(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma f16c avx512f\n")
    assert [s.name for s in isa.supported_sets(isa.cpu_flags(facts))] == ["avx2"]
    assert isa.supported_sets(isa.cpu_flags(tmp_path / "absent")) == []
    everything = frozenset(flag for known in isa.INSTRUCTION_SETS for flag in known.cpu_flags)
    assert [s.name for s in isa.supported_sets(everything)] == ["amx", "avx512-bf16", "avx512", "avx2"]
    assert isa.supported_sets(everything - {"amx_bf16"})[0].name == "avx512-bf16"


def test_a_library_that_is_missing_broken_or_of_other_sources_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NativeLibraryUnusable, match="not built; run: python -m"):
        load_native(tmp_path)
    (tmp_path / f"kernels-{NATIVE_SETS[0]}.so").write_bytes(b"\x7fELF")
    with pytest.raises(NativeLibraryUnusable, match="cannot be loaded"):
        load_native(tmp_path)
    current = native_library(NATIVE_SETS[0])
    monkeypatch.setattr("stratos.engine.native.library.source_digest", lambda: "other")
    with pytest.raises(NativeLibraryUnusable, match="built from other sources"):
        NativeLibrary(current.path, current.isa)


def test_without_kernels_the_engine_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "load_native", lambda name: load_native(Path("/nowhere"), name))
    with caplog.at_level(logging.INFO):
        chosen = kernels.choose_kernels(RunnerConfig(model_path=Path("m")), torch.device("cpu"), torch.float32)
    assert chosen.library is None
    assert isinstance(chosen.ops, TorchOps)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "native kernels are off, computing in pure torch, which is slower"
    ]
    asked = RunnerConfig(model_path=Path("m"), native_isa="avx2")
    with pytest.raises(InvalidCheckpoint, match=r"native_isa avx2 cannot be used: .*--all"):
        kernels.choose_kernels(asked, torch.device("cpu"), torch.float32)


def test_a_machine_without_a_compiler_builds_nothing_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    monkeypatch.setattr("sys.argv", ["build"])
    assert build.main() == 0
    assert "no C++ compiler" in capsys.readouterr().out


@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize("vocab", [1, 15, 16, 97, 1000])
def test_greedy_takes_the_lowest_of_equal_tokens_and_names_bad_rows(name: str, vocab: int) -> None:
    logits = torch.randn(7, vocab)
    logits[1] = -3.0
    logits[2, vocab // 2 :] = 9.0
    logits[3, -1] = float("nan")
    logits[4, 0] = float("inf")
    logits[5, vocab // 3] = -float("inf")
    tokens, is_finite = NativeOps(native_library(name), torch.bfloat16).greedy(logits)
    assert is_finite == [True, True, True, False, False, False, True]
    assert [tokens[row] for row in (0, 1, 2, 6)] == logits[is_finite].argmax(1).tolist()
    assert tokens[1] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
def test_kv_that_the_type_cannot_hold_is_stored_as_zero(name: str, dtype: torch.dtype) -> None:
    """Masked reads of a stale token meet no infinity: in float16 a finite sum may be one when it is stored."""
    geometry = KvGeometry(num_layers=1, num_kv_heads=1, head_dim=16, block_size=4, element_bytes=dtype.itemsize)
    pages = KvPages(geometry, 4, dtype, torch.device("cpu"))
    rows, rope = spans([(0, 2)], 4, 4), RopeRows(torch.ones(2, 16), torch.ones(2, 16))
    qkv = torch.zeros(2, 48, dtype=dtype)
    qkv[0, 16:32] = torch.finfo(dtype).max  # K is the sum of two such elements once it is rotated
    kernel = NativePagedAttention(native_library(name), pages, 1, [None])
    kernel.forward(0, qkv, rope, None, kernel.prepare(rows))
    assert bool(torch.isfinite(pages.tensor).all())
    assert not pages.tensor.any()


def test_on_another_processor_nothing_is_built_and_the_message_says_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("sys.argv", ["build", "--all"])
    monkeypatch.setattr("stratos.engine.native.build._provide", lambda *_: pytest.fail("it compiles"))
    assert build.main() == 0
    said = capsys.readouterr().out
    assert "written for x86-64, and this processor is aarch64" in said
    assert "the engine runs on pure torch" in said
    facts = tmp_path / "cpuinfo"
    facts.write_text("processor\t: 0\nFeatures\t: fp asimd bf16 sve\n")
    assert isa.supported_sets(isa.cpu_flags(facts)) == []
    monkeypatch.setattr("stratos.engine.native.library.cpu_flags", frozenset)
    with pytest.raises(NativeLibraryUnusable, match="none of the instruction sets"):
        load_native()
    with pytest.raises(NativeLibraryUnusable, match="no amx, the instruction set"):
        load_native(name="amx")
