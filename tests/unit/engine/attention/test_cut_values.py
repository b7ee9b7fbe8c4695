"""K or V that is not finite: pages hold 0 in its place, the token's own result is NaN, and no other bit changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stratos.core.kv import KvGeometry, KvRange
from stratos.engine.attention.backend import AttentionBackend, RowSpan
from stratos.engine.attention.native import NativePagedAttention, key_unit
from stratos.engine.attention.native_sinks import NativeSinkAttention
from stratos.engine.attention.paged import TorchPagedAttention
from stratos.engine.attention.scores import ScoreOptions
from stratos.engine.attention.sinks import CachePlaces, SinkPagedAttention, SinkTerms
from stratos.engine.attention.tiled import TorchTiledAttention
from stratos.engine.checkpoint.rope_config import RopeConfig
from stratos.engine.layers.rotary import RopeRows, RotaryTable
from stratos.engine.memory.kv_codes import KV_CODES
from stratos.engine.memory.kv_pages import KvPages
from tests.support.pairwise import thinned
from tests.support.reference.native_kernels import NATIVE_SETS, native_library

DIM, KV_HEADS, HEADS, BLOCK, NUM_BLOCKS = 32, 2, 4, 16, 24
CPU = torch.device("cpu")
ROTARY = RotaryTable(RopeConfig(), DIM, 128, CPU)
SPANS = [
    RowSpan(0, 1, 7, (3,)), RowSpan(1, 9, 30, (9, 4, 11)), RowSpan(10, 1, 40, (5, 8, 0)), RowSpan(11, 20, 0, (7, 2)),
    RowSpan(31, 1, 7, (12,)),
]  # fmt: skip
INF, NAN = float("inf"), float("nan")
CUTS = {0: (HEADS, INF), 5: (-1, NAN), 10: (-1, -INF), 30: (HEADS, NAN)}
"""Tokens of streams, in the middle of a chunk and at its end: a head of K or V, and what one number of it is."""
TOKENS = 32
KERNELS = ["paged", "tiled", *NATIVE_SETS]
SCORES = ["plain", "capped", "sinks", "window"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CASES = thinned(
    list(itertools.product(KERNELS, SCORES, DTYPES, [None, "int8", "fp8"])),
    [(name, scores, DTYPES[(i + j) % 3], None) for i, name in enumerate(KERNELS) for j, scores in enumerate(SCORES)]
    + [(name, "plain", torch.bfloat16, codes) for name in KERNELS for codes in ("int8", "fp8")],
)
SCORE_OPTIONS = {"capped": ScoreOptions(cap=5.0), "sinks": ScoreOptions(sinks=torch.ones(1, HEADS))}


def make_pages(dtype: torch.dtype, codes: str | None, unit: int = 0, num_sides: int = 2) -> KvPages:
    size, scale = (1, 2) if codes else (dtype.itemsize, 0)
    geometry = KvGeometry(
        num_layers=1, num_kv_heads=KV_HEADS if num_sides == 2 else 1, head_dim=DIM, block_size=BLOCK,
        element_bytes=size, scale_bytes=scale, num_sides=num_sides,
    )  # fmt: skip
    if codes:
        return KvPages(geometry, NUM_BLOCKS, torch.uint8, CPU, unit, codes=KV_CODES[codes])
    return KvPages(geometry, NUM_BLOCKS, dtype, CPU, unit)


def make_kernel(name: str, scores: str, dtype: torch.dtype, codes: str | None) -> tuple[AttentionBackend, KvPages]:
    is_native, options = name in NATIVE_SETS, SCORE_OPTIONS.get(scores, ScoreOptions())
    pages = make_pages(dtype, codes)
    if is_native:
        pages = make_pages(dtype, codes, key_unit(native_library(name), pages.geometry, dtype))
    if scores == "window":
        terms = SinkTerms(pages, HEADS, CachePlaces(2, 12, ROTARY), dtype)
        return NativeSinkAttention(native_library(name), terms) if is_native else SinkPagedAttention(terms), pages
    if is_native:
        return NativePagedAttention(native_library(name), pages, HEADS, [None], dtype, options), pages
    kernel = TorchPagedAttention if name == "paged" else TorchTiledAttention
    return kernel(pages, HEADS, [None], dtype, options), pages


def run(kernel: AttentionBackend, qkv: torch.Tensor) -> torch.Tensor:
    rope = RopeRows(torch.ones(TOKENS, DIM), torch.zeros(TOKENS, DIM))
    return kernel.forward(0, qkv.clone(), rope, None, kernel.prepare(SPANS))


def inputs(dtype: torch.dtype, num_kv: int = 2 * KV_HEADS) -> torch.Tensor:
    return torch.randn(TOKENS, HEADS + num_kv, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)


def assert_cut(out: torch.Tensor, clean: torch.Tensor, pages: KvPages) -> None:
    assert bool(out[list(CUTS)].isnan().all())
    wrong = [*range(5, 10), *CUTS]  # what follows a token in its chunk has read 0 in its place
    others = [token for token in range(TOKENS) if token not in wrong]
    assert torch.equal(out[others], clean[others])
    assert bool(torch.isfinite(out[6:10]).all())
    for span in SPANS:
        held = bytearray(pages.gather(span.block_table, KvRange(0, span.context, 0, 1)))
        row = torch.frombuffer(held, dtype=pages.tensor.dtype).view(-1, pages.tensor.shape[-1])
        assert bool(torch.isfinite(row if pages.codes is None else pages.codes.floats(row)).all())


@pytest.mark.parametrize(("name", "scores", "dtype", "codes"), CASES)
def test_a_token_whose_kv_was_cut_has_no_result(name: str, scores: str, dtype: torch.dtype, codes: str | None) -> None:
    kernel, pages = make_kernel(name, scores, dtype, codes)
    qkv = inputs(dtype)
    clean = run(kernel, qkv.view(TOKENS, -1))
    for token, (head, bad) in CUTS.items():
        qkv[token, head, DIM - 1] = bad
    assert_cut(run(kernel, qkv.view(TOKENS, -1)), clean, pages)


@pytest.mark.parametrize("name", ["tiled", *NATIVE_SETS])
def test_so_it_is_where_one_vector_is_key_and_value(name: str) -> None:
    pages = make_pages(torch.float32, None, num_sides=1)
    if name == "tiled":
        kernel: Any = TorchTiledAttention(pages, HEADS, [None])
    else:
        kernel = NativePagedAttention(native_library(name), pages, HEADS, [None])
    qkv = inputs(torch.float32, 1)
    clean = run(kernel, qkv.view(TOKENS, -1))
    for token in CUTS:
        qkv[token, -1, 3] = INF
    assert_cut(run(kernel, qkv.view(TOKENS, -1)), clean, pages)


@pytest.mark.parametrize("name", KERNELS)
def test_a_rotation_may_be_what_is_too_large(name: str) -> None:
    kernel, pages = make_kernel(name, "plain", torch.float16, None)
    qkv = inputs(torch.float16)
    for token in CUTS:
        qkv[token, HEADS] = 6e4  # a number of float16, and twice as much is none
    rope = RopeRows(torch.ones(TOKENS, DIM), torch.ones(TOKENS, DIM))
    out = kernel.forward(0, qkv.view(TOKENS, -1), rope, None, kernel.prepare(SPANS))
    assert [token for token in range(TOKENS) if bool(out[token].isnan().any())] == list(CUTS)
    assert bool(torch.isfinite(pages.tensor).all())
