"""Kernels on a GPU in the types that they serve in, against references in float32."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch

from stratos.common.clock import SystemClock
from stratos.core.device.checksum import mixed_sum
from stratos.core.kv import KvGeometry, KvRange
from stratos.core.requests.records import RequestKey
from stratos.core.requests.sampling_params import SamplingParams
from stratos.engine.attention.triton_paged import Shapes
from stratos.engine.contract.plan import SampleSpec
from stratos.engine.layers.ops import TorchOps
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.sampling.sampler import Sampler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TYPES = [torch.bfloat16, torch.float16]
DECODES = [(1, 1), (1, 17), (1, 200), (1, 64), (1, 129)]
MIXED = [(5, 9), (130, 130), (1, 40), (70, 210)]
SIZES = [(8, 4, 128), (2, 7, 128), (4, 1, 80), (2, 3, 64), (1, 8, 256)]


def world(shapes: list[tuple[int, int]], dtype: torch.dtype, size: tuple[int, int, int], **options: Any) -> Any:
    from tests.support.worlds.attention_world import World

    result = World(shapes, *size, **options)
    result.query = result.query.to(dtype)
    if not result.is_fp8:
        result.pages = result.pages.to(dtype)
    return result


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", [None, 33])
def test_attention(dtype: torch.dtype, size: tuple[int, int, int], window: int | None) -> None:
    shapes = Shapes.for_model(dtype, size[1], size[2])
    decode, mixed = world(DECODES, dtype, size, padding=3, num_blocks=200), world(MIXED, dtype, size, num_blocks=200)
    assert close(decode.run(shapes.decode, 8, window=window), decode.expected(window))
    assert close(decode.run(shapes.decode, 0, window=window), decode.expected(window))
    assert close(mixed.run(shapes.prefill, window=window), mixed.expected(window))
    assert close(mixed.run(shapes.exact, window=window, is_exact=True), mixed.expected(window))


@pytest.mark.parametrize("dtype", TYPES)
def test_attention_over_fp8_pages(dtype: torch.dtype) -> None:
    shapes = Shapes.for_model(dtype, 4, 128)
    decode = world(DECODES, dtype, (8, 4, 128), is_fp8=True, num_blocks=200)
    mixed = world(MIXED, dtype, (8, 4, 128), is_fp8=True, num_blocks=200)
    assert close(decode.run(shapes.decode, 8), decode.expected())
    assert close(mixed.run(shapes.prefill), mixed.expected())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("window", [None, 33])
def test_exact_attention_is_bitwise_equal_in_any_batch_and_chunk(dtype: torch.dtype, window: int | None) -> None:
    shape = Shapes.for_model(dtype, 4, 128).exact
    whole = world([(190, 190), (1, 40), (30, 64)], dtype, (8, 4, 128), num_blocks=200)
    expected = whole.run(shape, is_exact=True, window=window)[:190]
    query, tables = whole.query, whole.tables
    for chunk in (1, 7, 16, 190):
        for end in [*range(chunk, 190, chunk * 5), 190]:
            whole.query, whole.spans, whole.tables = query[end - chunk : end], [(0, chunk, end)], tables[:1]
            assert torch.equal(whole.run(shape, is_exact=True, window=window), expected[end - chunk : end])


@pytest.mark.parametrize("dtype", TYPES)
def test_exact_products(dtype: torch.dtype) -> None:
    from stratos.engine.triton_kernels.linear import linear

    torch.manual_seed(0)
    for num_out, num_in in ((4096, 4096), (4096, 14336), (97, 80)):
        x = torch.randn(130, num_in, dtype=dtype, device="cuda") / 16
        weight, bias = torch.randn(num_out, num_in, dtype=dtype, device="cuda") / 16, x[0, :1].expand(num_out).clone()
        whole = linear(x, weight, bias)
        assert close(whole, torch.nn.functional.linear(x.float(), weight.float(), bias.float()))
        for begin, end in ((0, 1), (63, 66), (129, 130), (7, 100)):
            assert torch.equal(linear(x[begin:end], weight, bias), whole[begin:end])


@pytest.mark.parametrize("dtype", TYPES)
def test_layer_operations(dtype: torch.dtype) -> None:
    from stratos.engine.layers.triton_ops import TritonOps

    torch.manual_seed(0)
    ours, theirs = TritonOps(), TorchOps()
    for hidden in (48, 4096, 5120):
        x, residual = (torch.randn(9, hidden, dtype=dtype, device="cuda") for _ in range(2))
        weight, sums = torch.randn(hidden, dtype=dtype, device="cuda"), [residual.clone(), residual.clone()]
        assert close(ours.rms_norm(x, weight, 1e-5), theirs.rms_norm(x, weight, 1e-5).float())
        normed = [ops.add_rms_norm(x, total, weight, 1e-5) for ops, total in zip((ours, theirs), sums, strict=True)]
        assert torch.equal(*sums)
        assert close(normed[0], normed[1].float())
        gate_up = torch.randn(9, 2 * hidden, dtype=dtype, device="cuda")
        assert close(ours.silu_mul(gate_up), theirs.silu_mul(gate_up).float())


@pytest.mark.parametrize("dtype", TYPES)
def test_rotation_and_kv_write_with_rounding_to_fp8(dtype: torch.dtype) -> None:
    from stratos.engine.attention.projections import QkNorm, rotated_heads
    from stratos.engine.triton_kernels.rope_kv import rotate_and_store

    torch.manual_seed(0)
    heads, kv_heads, dim, tokens = 32, 8, 128, 40
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype, device="cuda")
    angles = torch.randn(tokens, dim // 2, device="cuda")
    rope = RopeRows(torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1))
    norm = QkNorm(torch.randn(heads + kv_heads, dim, dtype=dtype, device="cuda"), 1e-6)
    slots = torch.randperm(4 * 16, device="cuda")[:tokens].to(torch.int32)
    scales = torch.rand(2, kv_heads, device="cuda") * 0.1 + 0.01
    expected, key, value = rotated_heads(qkv, rope, norm, heads, dim)
    for pages_type, kv_scales in ((dtype, None), (torch.float8_e4m3fn, scales)):
        pages = torch.zeros(4, 2, 2, kv_heads, 16, dim, device="cuda").to(pages_type)
        cut = torch.zeros(tokens, dtype=torch.bool, device="cuda")
        query = rotate_and_store(
            qkv, rope.cos, rope.sin, norm.weight, 1e-6, slots, pages[:, 1], heads, kv_scales, cut=cut
        )
        assert not cut.any()
        assert close(query, expected.float())
        stored = pages[:, 1].float().permute(0, 3, 1, 2, 4).reshape(-1, 2, kv_heads, dim)[slots.long()]
        wanted = torch.stack((key, value), 1).float()
        if kv_scales is not None:
            most = 448 * kv_scales[:, :, None]
            assert torch.allclose(stored * kv_scales[:, :, None], wanted.clamp(-most, most), rtol=1 / 14, atol=2e-3)
        else:
            assert close(stored, wanted)


def test_the_sampler_gives_the_tokens_of_the_cpu() -> None:
    from stratos.engine.sampling.triton_sampler import TritonSampler

    vocab = 128256
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in itertools.product((0.0, 0.8, 2.0), (0, 1, 40), (0.1, 0.95, 1.0), (0.0, 0.05))
    ]
    specs = [
        SampleSpec(
            key=RequestKey("r", 0), choice=0, seed=5, position=row, params=p, prompt_ids=(), output_ids=(),
            num_output_tokens=0,
        )
        for row, p in enumerate(params)
    ]  # fmt: skip
    logits = torch.randn(len(specs), vocab, generator=torch.Generator().manual_seed(1)) * 3
    for values in (logits, logits.round()):
        on_cpu = Sampler((0,), vocab, torch.device("cpu")).sample(values, specs)
        on_gpu = TritonSampler((0,), vocab, torch.device("cuda")).sample(values.cuda(), specs)
        differing = [i for i, (a, b) in enumerate(zip(on_cpu.token_ids, on_gpu.token_ids, strict=True)) if a != b]
        # logarithm and exponential differ in their last bits between the devices
        assert len(differing) <= 1, json.dumps([str(params[i]) for i in differing])
    assert math.isfinite(float(logits.sum()))


def kv_pool(num_blocks: int = 64) -> Any:
    from stratos.engine.memory.kv_pages import KvPages

    geometry = KvGeometry(num_layers=4, num_kv_heads=8, head_dim=128, block_size=16, element_bytes=2)
    pages = KvPages(geometry, num_blocks, torch.bfloat16, torch.device("cuda"))
    pages.tensor.view(torch.int64).random_()
    return pages


def occupy(products: int) -> None:
    """Enqueue some milliseconds of work each."""
    square = torch.zeros(8192, 8192, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(square)
    for _ in range(products):
        torch.mm(square, square, out=out)


@pytest.mark.parametrize("kv_range", [KvRange(0, 512, 0, 4), KvRange(5, 490, 1, 3), KvRange(17, 18, 0, 4)])
def test_kv_copies_and_their_checksum(kv_range: KvRange) -> None:
    from stratos.engine.runner.cuda.page_copies import PageCopies

    source, target, table = kv_pool(), kv_pool(), tuple(range(63, 31, -1))
    payload = source.gather(table, kv_range)
    run, checksum = PageCopies(source).pack(table, kv_range)
    assert bytes(run.cpu().numpy()) == bytes(payload)
    assert checksum == mixed_sum(payload)
    assert PageCopies(target).unpack(table[::-1], kv_range, run) == checksum
    assert bytes(target.gather(table[::-1], kv_range)) == bytes(payload)
    PageCopies(target).scatter(table, kv_range, PageCopies(source).gather(table, kv_range))
    assert bytes(target.gather(table, kv_range)) == bytes(payload)


def test_copies_of_kv_do_not_wait_for_launched_work() -> None:
    from stratos.engine.runner.cuda.page_copies import PageCopies

    copies, table, kv_range = PageCopies(kv_pool()), tuple(range(32)), KvRange(0, 512, 0, 4)
    copies.scatter(table, kv_range, copies.gather(table, kv_range))
    ended = torch.cuda.Event()
    torch.cuda.synchronize()
    occupy(products=1000)
    ended.record()
    copies.scatter(table, kv_range, copies.gather(table, kv_range))
    assert not ended.query(), "the step's stream is busy still"
    torch.cuda.synchronize()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_host_swaps_have_a_stream_of_their_own(is_fenced: bool) -> None:
    from stratos.engine.memory.host_pages import HostPages

    pages = kv_pool()
    host, stream, before = HostPages(pages, 4, SystemClock()), torch.cuda.Stream(), pages.tensor.clone()
    occupy(products=50)
    pages.tensor[1].add_(1)  # launched before: the copy must have it
    swap = host.start([(1, 0), (2, 3)], [(3, 9)], stream, is_fenced=is_fenced)
    if not is_fenced:
        pages.tensor[9].add_(1)  # launched after: it must find the copy
    assert swap.wait() > 0
    torch.cuda.synchronize()
    expected = before[2] if is_fenced else before[2] + 1  # adding 0 would turn -0.0 into 0.0
    assert torch.equal(pages.tensor[9].view(torch.int16), expected.view(torch.int16))
    assert torch.equal(host.slots[0].cuda().view(torch.int16), pages.tensor[1].view(torch.int16))
