"""Measure attention of decode on CPU: how fast the kernel reads KV, packed in the pages and as rows of heads.

    python -m scripts.bench.attention --out benchmarks/results/attention-epyc-bf16-2core-cpu.json

Rows of one token over contexts of equal length, blocks in random order, one thread, more KV than a cache holds.  KV is
numbers of the compute type, or codes of one byte where bfloat16 is computed.  A figure is the median of runs that take
turns; time is CPU time of the thread, since the machine may be shared.
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
from stratos.engine.memory.kv_codes import KV_CODES, SCALE_BYTES
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.native.isa import cpu_flags
from stratos.engine.native.library import NativeLibrary, load_native

CONTEXTS = (128, 1024, 4096)
HEADS = {"64, group 4": (64, 4, 4), "128, group 4": (128, 4, 4), "128, group 1": (128, 4, 1), "32, group 2": (32, 4, 2),
         "64, group 7": (64, 2, 7)}  # fmt: skip
"""Dimension of a head, KV heads, query heads of a KV head; the first and the fourth are those of our models."""
KINDS = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.bfloat16, "fp8": torch.bfloat16}
"""What pages hold, and what is computed."""
BLOCK_SIZE, POOL_BYTES, TOKENS = 16, 96 * 1024 * 1024, 8192


class Case:
    """One kernel over a pool of its own, and the rows of a step."""

    def __init__(self, library: NativeLibrary, kind: str, head: str, context: int, *, is_packed: bool) -> None:
        dim, kv_heads, group = HEADS[head]
        dtype, codes = KINDS[kind], KV_CODES.get(kind)
        num_rows, heads = max(1, TOKENS // context), group * kv_heads
        self.layers = max(1, POOL_BYTES // (num_rows * context * 2 * kv_heads * dim * 2))
        geometry = KvGeometry(
            num_layers=self.layers, num_kv_heads=kv_heads, head_dim=dim, block_size=BLOCK_SIZE,
            element_bytes=1 if codes else dtype.itemsize, scale_bytes=SCALE_BYTES if codes else 0,
        )  # fmt: skip
        per_row, rng = context // BLOCK_SIZE, random.Random(0)
        blocks = rng.sample(range(num_rows * per_row), num_rows * per_row)
        unit = key_unit(library, geometry, dtype) if is_packed else 0
        stored = torch.uint8 if codes else dtype
        self.pages = KvPages(geometry, len(blocks), stored, torch.device("cpu"), unit, codes)
        if codes:
            self.pages.tensor.fill_(56)  # a code and, twice, a scale
        else:
            self.pages.tensor.uniform_(-1, 1)
        tables = [tuple(blocks[first : first + per_row]) for first in range(0, len(blocks), per_row)]
        spans = [RowSpan(row, 1, context - 1, table) for row, table in enumerate(tables)]
        self.kernel = NativePagedAttention(library, self.pages, heads, (None,) * self.layers, dtype)
        self.qkv = torch.randn(num_rows, (heads + 2 * kv_heads) * dim).to(dtype)
        self.rope = RopeRows(torch.ones(num_rows, dim), torch.zeros(num_rows, dim))
        self.step, self.num_tokens = self.kernel.prepare(spans), num_rows * context * self.layers
        self.num_bytes = self.num_tokens * geometry.token_bytes // self.layers

    def run_s(self) -> float:
        """CPU time of all layers of one step."""
        begin = time.thread_time()
        for layer in range(self.layers):
            self.kernel.forward(layer, self.qkv, self.rope, None, self.step)
        return time.thread_time() - begin


def measure(library: NativeLibrary, head: str, context: int, rounds: int) -> list[dict[str, Any]]:
    """Every kind of KV in both forms, in turn."""
    arms = list(itertools.product(KINDS, (False, True)))
    cases = {(kind, form): Case(library, kind, head, context, is_packed=form) for kind, form in arms}
    for case in cases.values():
        case.run_s()
    runs = by_turns(rounds, cases, lambda arm, _: cases[arm].run_s())
    times = {arm: statistics.median(found) for arm, found in runs.items()}
    token_s = {arm: times[arm] / cases[arm].num_tokens for arm in arms}
    return [
        {
            "kv": kind, "head": head, "context": context, "kv_bytes": cases[kind, True].num_bytes,
            "is_packed": cases[kind, True].pages.key_unit > 0,
            "plain_gb_per_s": round(cases[kind, False].num_bytes / times[kind, False] / 1e9, 2),
            "packed_gb_per_s": round(cases[kind, True].num_bytes / times[kind, True] / 1e9, 2),
            "ratio": round(times[kind, True] / times[kind, False], 3),
            "speed_of_bfloat16": round(token_s["bfloat16", True] / token_s[kind, True], 3),
        }
        for kind in KINDS
    ]  # fmt: skip


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Every shape and context."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = load_native(name=args.isa)
    features = sorted(name for name in cpu_flags() if name.startswith(("avx", "amx", "fma")))
    rows = []
    for head, context in itertools.product(args.heads, args.contexts):
        for row in measure(library, head, context, args.rounds):
            rows.append(row)
            show(row)
    names = ("kv", "head", "context", "plain_gb_per_s", "packed_gb_per_s", "ratio", "speed_of_bfloat16")
    lines = table(names, [[str(row[name]) for name in names] for row in rows])
    return {"isa": library.isa, "features": features, "threads": 1, "rounds": args.rounds, "rows": rows, "table": lines}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--isa", default="auto", help="build of the kernels"),
        flag("--rounds", type=int, default=7),
        flag("--heads", nargs="+", default=list(HEADS), help="of the table"),
        flag("--contexts", nargs="+", type=int, default=list(CONTEXTS)),
    )
