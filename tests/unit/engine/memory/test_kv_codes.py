"""KV in one byte: what rows hold, the same bytes from the C++ kernels, and attention over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.common.errors import InvalidCheckpoint
from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, key_unit
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.tiled import TorchTiledAttention
from stratos.engine.contract.plan import StepPlan
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_codes import FP8, INT8, KV_CODES, SCALE_BYTES, KvCodes
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.torch_runner import TorchRunner
from stratos.engine.sizing.need import read_need
from tests.support.reference.native_kernels import NATIVE_SETS, native_library
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import make_core, make_request
from tests.support.worlds.plan_driver import Driver, load_runner

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = list(KV_CODES.values())
LAYERS, BLOCKS = 2, 40
NUM_WAITING = 40


def geometry(dim: int, kv_heads: int, block: int, dtype: torch.dtype | None = None) -> KvGeometry:
    return KvGeometry(
        num_layers=LAYERS,
        num_kv_heads=kv_heads,
        head_dim=dim,
        block_size=block,
        element_bytes=dtype.itemsize if dtype else 1,
        scale_bytes=0 if dtype else SCALE_BYTES,
    )


def code_pages(codes: KvCodes, dim: int, kv_heads: int, block: int, unit: int = 0) -> KvPages:
    return KvPages(geometry(dim, kv_heads, block), BLOCKS, torch.uint8, torch.device("cpu"), unit, codes)


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.name)
def test_rows_hold_numbers_as_closely_as_their_codes_can(codes: KvCodes) -> None:
    torch.manual_seed(0)
    values = torch.randn(200, 40) * torch.logspace(-20, 20, 200)[:, None]
    rows = codes.rows(values)
    assert rows.shape == (200, 42)
    error, size = (codes.floats(rows) - values).abs(), values.abs().amax(1, keepdim=True)
    # a code is off by half a step of an integer, or by half a bit of a fraction of 3
    bound = 0.51 * size / 127 if codes is INT8 else torch.maximum(values.abs() / 16, size / 448 / 500)
    assert (error <= bound * 1.01).all()


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.name)
def test_a_row_of_nothing_is_nothing(codes: KvCodes) -> None:
    rows = codes.rows(torch.tensor([[0.0, -0.0], [1e-31, -1e-38], [3e38, -3e38]]))
    assert not codes.floats(rows[:2]).any()
    assert torch.isfinite(codes.floats(rows)).all()


def spans(shapes: list[tuple[int, int]], block: int) -> list[RowSpan]:
    free, begin, rows = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(1)).tolist(), 0, []
    for start, count in shapes:
        rows.append(RowSpan(begin, count, start, tuple(free.pop() for _ in range(-(-(start + count) // block)))))
        begin += count
    return rows


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("dim", "block", "window"), [(64, 16, None), (38, 16, 40)])
def test_kernels_write_the_same_bytes_and_attend_to_what_they_stand_for(
    name: str, dtype: torch.dtype, codes: KvCodes, dim: int, block: int, window: int | None
) -> None:
    torch.manual_seed(0)
    kv_heads, heads = 2, 6
    rows = spans([(0, 70), (3, 1), (60, 9)], block)
    num_tokens = rows[-1].begin + rows[-1].num_tokens
    qkv = (torch.randn(num_tokens, (heads + 2 * kv_heads) * dim) * 3).to(dtype)
    qkv[0, -dim:] = 0
    qkv[1, -1] = torch.inf
    rope = RopeRows(torch.ones(num_tokens, dim), torch.zeros(num_tokens, dim))  # leaves K as it is
    pools = [code_pages(codes, dim, kv_heads, block) for _ in range(2)]
    pools[0].tensor.copy_(codes.rows(torch.randn(pools[0].tensor.numel() // (dim + 2), dim)).view_as(pools[0].tensor))
    pools[1].tensor.copy_(pools[0].tensor)
    ours = NativePagedAttention(native_library(name), pools[0], heads, [window, None], dtype)
    torch_one = TorchPagedAttention(pools[1], heads, [window, None], dtype)
    plain = KvPages(geometry(dim, kv_heads, block, torch.float32), BLOCKS, torch.float32, torch.device("cpu"))
    for layer in range(LAYERS):
        got = ours.forward(layer, qkv.clone(), rope, None, ours.prepare(rows))
        also = torch_one.forward(layer, qkv.clone(), rope, None, torch_one.prepare(rows))
        assert torch.equal(pools[0].tensor, pools[1].tensor)
        # attention in float32 over the numbers that the rows stand for
        plain.tensor.copy_(codes.floats(pools[0].tensor.view(-1, dim + SCALE_BYTES)).view_as(plain.tensor))
        wide = NativePagedAttention(native_library(name), plain, heads, [window, None])
        held = qkv.float().nan_to_num(0.0, 0.0, 0.0)
        kv = held[:, heads * dim :].reshape(-1, dim)
        held[:, heads * dim :] = codes.floats(codes.rows(kv)).view(num_tokens, -1)
        expected = wide.forward(layer, held, rope, None, wide.prepare(rows))
        expected[1] = torch.nan  # its V was cut
        atol = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
        torch.testing.assert_close(got.float(), expected, rtol=2e-2, atol=atol, equal_nan=True)
        if dtype == torch.float32:  # torch rounds what it widened to the compute type
            torch.testing.assert_close(also, expected, rtol=2e-5, atol=atol, equal_nan=True)


@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NATIVE_SETS)
@pytest.mark.parametrize(("dim", "group", "block", "window"), [(64, 4, 16, None), (32, 7, 32, 40), (96, 20, 48, 9)])
def test_packed_codes_change_no_bit(
    name: str, dtype: torch.dtype, codes: KvCodes, dim: int, group: int, block: int, window: int | None
) -> None:
    torch.manual_seed(0)
    library, kv_heads = native_library(name), 2
    heads, unit = group * kv_heads, key_unit(library, geometry(dim, kv_heads, block), dtype)
    assert unit > 0
    pools = [code_pages(codes, dim, kv_heads, block, form) for form in (0, unit)]
    everything = tuple(range(BLOCKS)), KvRange(0, BLOCKS * block, 0, LAYERS)
    pools[0].tensor.copy_(codes.rows(torch.randn(pools[0].tensor.numel() // (dim + 2), dim)).view_as(pools[0].tensor))
    pools[1].scatter(*everything, pools[0].gather(*everything))
    rows = spans([(0, 1), (63, 1), (64, 1), (3, 70), (199, 2), (150, 1)], block)
    num_tokens = rows[-1].begin + rows[-1].num_tokens
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    rope = RopeRows(torch.ones(num_tokens, dim), torch.zeros(num_tokens, dim))
    kernels = [NativePagedAttention(library, pages, heads, [window, None], dtype) for pages in pools]
    for layer in range(LAYERS):
        plain, packed = (one.forward(layer, qkv.clone(), rope, None, one.prepare(rows)) for one in kernels)
        assert torch.equal(plain, packed)
    assert bytes(pools[0].gather(*everything)) == bytes(pools[1].gather(*everything))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path)
    return path


PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1])


def answers(runner: TorchRunner, chunk: int, together: bool) -> list[list[int]]:
    driver = Driver(runner)
    streams = [driver.stream(prompt) for prompt in PROMPTS]
    for group in [streams] if together else [[stream] for stream in streams]:
        driver.generate(group, 12, chunk)
    return [stream.tokens for stream in streams]


@pytest.mark.parametrize("settings", [{}, {"native_kernels": False}, {"dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("codes", CODES, ids=lambda codes: codes.name)
def test_no_chunk_and_no_neighbour_changes_a_token(model_path: Path, codes: KvCodes, settings: dict[str, Any]) -> None:
    runner = load_runner(model_path, kv_dtype=codes.name, **settings)
    assert runner.info.identity.kv_dtype == f"{codes.name}-token"
    assert f"+kv-{codes.name}.r1+" in runner.info.identity.numerics_id
    assert runner.info.identity.numerics_id.endswith("+exact") or settings.get("native_kernels") is False
    alone = answers(runner, 1 << 20, together=False)
    assert answers(runner, 3, together=True) == alone


def test_a_stream_goes_on_with_kv_of_another_worker_and_after_a_swap(model_path: Path) -> None:
    source, target = (load_runner(model_path, kv_dtype="int8", host_pool_bytes=1 << 16) for _ in range(2))
    assert source.info.identity.misfit(target.info.identity) is None
    assert source.info.identity.misfit(load_runner(model_path, kv_dtype="fp8").info.identity) == "kv_dtype"
    driver, other = Driver(source), Driver(target, seed=5)
    stream = driver.stream(PROMPTS[0])
    driver.generate([stream], 10)
    expected = stream.tokens
    moved, begun = other.stream(PROMPTS[0]), driver.stream(PROMPTS[0])
    driver.step([(begun, begun.row(len(PROMPTS[0]) - 1, is_sampling=False))])
    kv_range = KvRange(0, begun.num_computed, 0, source.info.geometry.num_layers)
    payload = source.gather(begun.blocks, kv_range)
    assert payload.nbytes == source.info.geometry.num_bytes(kv_range)
    target.scatter(moved.blocks, kv_range, payload)
    moved.num_computed = begun.num_computed
    block = moved.blocks[0]
    target.collect(target.launch(StepPlan(step=98, rows=(), swap_outs=((block, 0),))))
    target.pages.tensor[block].zero_()
    target.collect(target.launch(StepPlan(step=99, rows=(), swap_ins=((0, block),))))
    other.generate([moved], 10)
    assert moved.tokens == expected


def test_sizes_count_the_scales_and_twice_the_tokens_fit(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    plain, packed = (load_runner(tmp_path, dtype="bfloat16", kv_dtype=kind) for kind in ("auto", "int8"))
    assert packed.info.num_blocks >= 1.9 * plain.info.num_blocks
    need = read_need(tmp_path)
    assert packed.info.geometry.token_bytes == need.token_bytes("bfloat16", "int8", has_scales=True)
    assert plain.info.geometry.token_bytes == need.token_bytes("bfloat16")


def test_nearly_twice_the_sequences_are_live_in_the_same_pool(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    plain, packed = (most_live(tmp_path, kind) for kind in ("auto", "int8"))
    assert plain <= NUM_WAITING / 2, "the pool is what bounds it"
    assert packed >= 1.9 * plain


def most_live(path: Path, kind: str) -> int:
    """Sequences that decode at once, of more than fit; none is preempted."""
    core = make_core(
        path,
        kv_pool_bytes=1 << 19,
        runner={"dtype": "bfloat16", "kv_dtype": kind},
        max_num_seqs=NUM_WAITING,
        max_num_batched_tokens=8192,
        step_time_budget_ms=0.0,
        prefix_cache=False,
    )
    for index in range(NUM_WAITING):
        core.add(make_request([index % 97] * 40, f"r{index}", max_tokens=24, ignore_eos=True))
    live = []
    while core.has_work:
        core.step()
        live.append(core.status().num_running)
    assert not core.status().num_preemptions
    return max(live)


def test_int8_on_a_gpu_is_refused(model_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="int8 is for CPUs"):
        load_runner(model_path, kv_dtype="int8", triton_kernels=True)


def test_tiled_attention_reads_codes(model_path: Path) -> None:
    runner = load_runner(model_path, kv_dtype="fp8", native_kernels=False)
    assert isinstance(runner.attention, TorchTiledAttention)
    assert runner.pages.codes is FP8
