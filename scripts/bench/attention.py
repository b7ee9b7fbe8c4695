"""Measure attention of decode on CPU: how fast the kernel reads KV, with K packed in the pages and as rows of heads.

    python -m scripts.bench.attention --out benchmarks/results/attention-epyc-bf16-2core-cpu.json

Rows of one token over contexts of equal length, blocks in random order, one thread, more KV than a cache holds.  A
figure is the median of runs that take turns; time is CPU time of the thread, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from typing import Any

import torch

from scripts.bench.harness import by_turns, flag, run_bench, show, table
from stratos.core.kv import KvGeometry
from stratos.engine.attention.backend import RowSpan
from stratos.engine.attention.native import NativePagedAttention, key_unit
from stratos.engine.layers.rotary import RopeRows
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native.isa import cpu_flags
from stratos.engine.native.library import NativeLibrary, load_native

CONTEXTS = (128, 1024, 4096)
HEADS = {"64, group 4": (64, 4, 4), "128, group 4": (128, 4, 4), "128, group 1": (128, 4, 1), "32, group 2": (32, 4, 2),
         "64, group 7": (64, 2, 7)}  # fmt: skip
"""Dimension of a head, KV heads, query heads of a KV head; the first and the fourth are those of our models."""
BLOCK_SIZE, POOL_BYTES = 16, 96 * 1024 * 1024


class Case:
    """One kernel over a pool of its own, and the rows of a step."""

    def __init__(self, library: NativeLibrary, dtype: torch.dtype, head: str, context: int, *, is_packed: bool) -> None:
        dim, kv_heads, group = HEADS[head]
        layer_bytes = 2 * kv_heads * dim * dtype.itemsize
        num_rows = max(1, 8192 // context)
        self.layers = max(1, POOL_BYTES // (num_rows * context * layer_bytes))
        geometry = KvGeometry(
            num_layers=self.layers, num_kv_heads=kv_heads, head_dim=dim, block_size=BLOCK_SIZE,
            element_bytes=dtype.itemsize,
        )  # fmt: skip
        per_row, rng = context // BLOCK_SIZE, random.Random(0)
        blocks = rng.sample(range(num_rows * per_row), num_rows * per_row)
        unit = key_unit(library, geometry, dtype) if is_packed else 0
        self.pages = KvPages(geometry, len(blocks), dtype, torch.device("cpu"), unit)
        self.pages.tensor.uniform_(-1, 1)
        tables = [tuple(blocks[first : first + per_row]) for first in range(0, len(blocks), per_row)]
        spans = [RowSpan(row, 1, context - 1, table) for row, table in enumerate(tables)]
        heads = group * kv_heads
        self.kernel = NativePagedAttention(library, self.pages, heads, (None,) * self.layers)
        self.qkv = torch.randn(num_rows, (heads + 2 * kv_heads) * dim).to(dtype)
        self.rope = RopeRows(torch.ones(num_rows, dim), torch.zeros(num_rows, dim))
        self.step, self.num_rows = self.kernel.prepare(spans), num_rows
        self.num_bytes = self.layers * num_rows * context * layer_bytes

    def run_s(self) -> float:
        """CPU time of all layers of one step."""
        begin = time.thread_time()
        for layer in range(self.layers):
            self.kernel.forward(layer, self.qkv, self.rope, None, self.step)
        return time.thread_time() - begin


def measure(library: NativeLibrary, dtype: torch.dtype, head: str, context: int, rounds: int) -> dict[str, Any]:
    """Both forms of K in turn."""
    cases = {is_packed: Case(library, dtype, head, context, is_packed=is_packed) for is_packed in (False, True)}
    for case in cases.values():
        case.run_s()
    runs = by_turns(rounds, cases, lambda is_packed, _: cases[is_packed].run_s())
    times = {is_packed: statistics.median(found) for is_packed, found in runs.items()}
    packed = cases[True]
    return {
        "dtype": str(dtype).removeprefix("torch."), "head": head, "context": context, "rows": packed.num_rows,
        "is_packed": packed.pages.key_unit > 0, "kv_bytes": packed.num_bytes,
        "plain_gb_per_s": round(packed.num_bytes / times[False] / 1e9, 2),
        "packed_gb_per_s": round(packed.num_bytes / times[True] / 1e9, 2),
        "ratio": round(times[True] / times[False], 3),
    }  # fmt: skip


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every type, shape and context."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = load_native(name=args.isa)
    features = sorted(name for name in cpu_flags() if name.startswith(("avx", "amx", "fma")))
    rows = []
    for dtype, head, context in itertools.product((torch.bfloat16, torch.float32), HEADS, CONTEXTS):
        rows.append(measure(library, dtype, head, context, args.rounds))
        show(rows[-1])
    names = ("dtype", "head", "context", "rows", "plain_gb_per_s", "packed_gb_per_s", "ratio")
    lines = table(names, [[str(row[name]) for name in names] for row in rows])
    return {"isa": library.isa, "features": features, "threads": 1, "rounds": args.rounds, "rows": rows, "table": lines}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--isa", default="auto", help="build of the kernels"),
        flag("--rounds", type=int, default=7),
    )
