"""Fused layer operations against the operations that they fuse."""

from __future__ import annotations

import pytest
import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.kv import KvGeometry
from stratos.engine.attention import triton_paged
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.projections import QkNorm, rotated_heads
from stratos.engine.attention.triton_paged import Shapes, TritonPagedAttention
from stratos.engine.layers.ops import TorchOps
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.layers.triton_ops import TritonOps
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.triton_kernels.rope_kv import rotate_and_store

TORCH, TRITON = TorchOps(), TritonOps()
HEADS, KV_HEADS, DIM, BLOCK, LAYERS = 6, 2, 10, 4, 2
GEOMETRY = KvGeometry(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, block_size=BLOCK, element_bytes=4)
SPANS = [RowSpan(0, 1, 9, (5, 2, 7)), RowSpan(1, 6, 3, (1, 9, 3)), RowSpan(7, 1, 0, (4,)), RowSpan(8, 2, 2, (11,))]
TOKENS = 10


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@pytest.mark.parametrize("hidden", [1, 48, 64, 300])
def test_norms(hidden: int) -> None:
    x, residual, weight = _random(5, hidden), _random(5, hidden), _random(hidden)
    assert torch.allclose(TRITON.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5), atol=1e-5)
    sums = [residual.clone(), residual.clone()]
    results = [ops.add_rms_norm(x, total, weight, 1e-5) for ops, total in zip((TORCH, TRITON), sums, strict=True)]
    assert torch.allclose(*results, atol=1e-5)
    assert torch.equal(*sums)


@pytest.mark.parametrize("inner", [1, 56, 1024, 1500])
def test_activation(inner: int) -> None:
    gate_up = _random(3, 2 * inner) * 5
    assert torch.allclose(TRITON.silu_mul(gate_up), TORCH.silu_mul(gate_up), atol=1e-5)


def test_no_tokens_are_no_launch() -> None:
    assert TRITON.silu_mul(_random(0, 8)).shape == (0, 4)
    assert TRITON.rms_norm(_random(0, 8), _random(8), 1e-5).shape == (0, 8)


def _rope() -> RopeRows:
    angles = _random(TOKENS, DIM // 2)
    return RopeRows(torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1))


def _norm() -> QkNorm:
    return QkNorm(_random(HEADS + KV_HEADS, DIM), 1e-6)


@pytest.mark.parametrize("has_norm", [False, True])
def test_rotation_and_the_write_of_kv(has_norm: bool) -> None:
    torch.manual_seed(0)
    qkv, rope, norm = _random(TOKENS, (HEADS + 2 * KV_HEADS) * DIM), _rope(), _norm() if has_norm else None
    pages = torch.zeros(6, LAYERS, 2, KV_HEADS, BLOCK, DIM, device=DEVICE)
    slots = torch.tensor([0, 5, 23, -1, 8, 9, 10, 11, -1, 2], dtype=torch.int32, device=DEVICE)
    weight = None if norm is None else norm.weight
    cut = torch.zeros(TOKENS, dtype=torch.bool, device=DEVICE)
    query = rotate_and_store(qkv, rope.cos, rope.sin, weight, 1e-6, slots, pages[:, 1], HEADS, cut=cut)
    assert not cut.any()
    expected_query, *kv = rotated_heads(qkv, rope, norm, HEADS, DIM)
    assert torch.allclose(query, expected_query, atol=1e-5)
    expected = torch.zeros_like(pages)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for half in (0, 1):
                expected[slot // BLOCK, 1, half, :, slot % BLOCK] = kv[half][token]
    assert torch.allclose(pages, expected, atol=1e-5)


def test_fp8_pages_hold_scaled_values_within_their_range() -> None:
    # values that fp8 has exactly: the interpreter's rounding of others is off (a GPU's is tested on GPUs)
    qkv = torch.randint(-15, 16, (TOKENS, (HEADS + 2 * KV_HEADS) * DIM), device=DEVICE).float() * 8
    rope = RopeRows(torch.ones(TOKENS, DIM, device=DEVICE), torch.zeros(TOKENS, DIM, device=DEVICE))
    scales = torch.tensor([[0.5, 1.0], [0.25, 2.0]], device=DEVICE)
    pages = torch.zeros(3, 1, 2, KV_HEADS, BLOCK, DIM, device=DEVICE).to(torch.float8_e4m3fn)
    slots = torch.arange(TOKENS, dtype=torch.int32, device=DEVICE)
    cut = torch.zeros(TOKENS, dtype=torch.bool, device=DEVICE)
    rotate_and_store(qkv, rope.cos, rope.sin, None, 0.0, slots, pages[:, 0], HEADS, scales, cut=cut)
    assert not cut.any()
    kv = qkv.view(TOKENS, -1, DIM)[:, HEADS:].reshape(TOKENS, 2, KV_HEADS, DIM)
    stored = pages.float().permute(0, 4, 1, 2, 3, 5).reshape(-1, 2, KV_HEADS, DIM)[:TOKENS]
    assert torch.equal(stored, (kv / scales[:, :, None]).clamp(-448, 448))
    assert bool((stored.abs() == 448).any())


def test_values_that_are_not_finite_are_stored_as_zeros_and_their_token_is_named() -> None:
    qkv = torch.ones(5, HEADS + 2 * KV_HEADS, DIM, device=DEVICE)
    qkv[0, 0] = float("nan")  # a query is not stored
    qkv[1, HEADS:] = float("nan")
    qkv[2, -1, DIM - 1] = float("-inf")
    qkv[3, HEADS, 0] = float("inf")
    qkv[4] = float("inf")  # padding is stored nowhere
    pages = torch.ones(1, 1, 2, KV_HEADS, BLOCK, DIM, device=DEVICE)
    ones = torch.ones(5, DIM, device=DEVICE)
    slots = torch.tensor([0, 1, 2, 3, -1], dtype=torch.int32, device=DEVICE)
    cut = torch.zeros(5, dtype=torch.bool, device=DEVICE)
    rotate_and_store(qkv.view(5, -1), ones, ones, None, 0.0, slots, pages[:, 0], HEADS, cut=cut)
    assert cut.tolist() == [False, True, True, True, False]
    assert bool(torch.isfinite(pages).all())
    assert not pages[:, :, :, :, 1].any()
    assert [int((pages[0, 0, :, :, token] == 0).sum()) for token in (0, 2, 3)] == [0, 1, 2]


@pytest.fixture
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the interpreter run one by one."""
    monkeypatch.setattr(triton_paged, "TARGET_PROGRAMS", 8)


@pytest.mark.usefixtures("_few_programs")
@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("windows", [(None, None), (5, None)])
def test_backend_equals_the_portable_one(windows: tuple[int | None, ...], is_exact: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(12, LAYERS, 2, KV_HEADS, BLOCK, DIM)
    results = []
    for name in ("torch-paged", "triton-paged"):
        pages = KvPages(GEOMETRY, 12, torch.float32, torch.device(DEVICE))
        pages.tensor.copy_(start)
        kernel = (
            TritonPagedAttention(pages, HEADS, windows, is_exact=is_exact)
            if name == "triton-paged"
            else TorchPagedAttention(pages, HEADS, windows)
        )
        torch.manual_seed(1)
        qkv, rope, norm = _random(TOKENS, (HEADS + 2 * KV_HEADS) * DIM), _rope(), _norm()
        metadata = kernel.prepare(SPANS)
        outs = [kernel.forward(layer, qkv.clone(), rope, norm, metadata) for layer in range(LAYERS)]
        results.append((torch.stack(outs), pages.tensor))
    for left, right in zip(*results, strict=True):
        assert torch.allclose(left, right, atol=1e-5)


@pytest.mark.parametrize(("num_rows", "num_parts"), [(1, 64), (8, 16), (64, 2), (132, 1), (1000, 1)])
def test_parts_follow_from_the_number_of_rows_and_fit_their_scratch(num_rows: int, num_parts: int) -> None:
    geometry = KvGeometry(num_layers=1, num_kv_heads=4, head_dim=8, block_size=4, element_bytes=4)
    kernel = TritonPagedAttention(KvPages(geometry, 1, torch.float32, torch.device("cpu")), 12, (None,))
    assert kernel.num_parts(num_rows) == num_parts
    assert (kernel.parts(num_rows) is None) == (num_parts == 1)


def test_shapes_suit_warp_groups_and_hold_a_group_of_heads() -> None:
    shapes = Shapes.for_model(torch.bfloat16, 7, 128)
    assert (shapes.decode.rows, shapes.prefill.rows, shapes.exact.rows) == (16, 128, 64)
    assert Shapes.for_model(torch.bfloat16, 20, 64).decode.rows == 32
