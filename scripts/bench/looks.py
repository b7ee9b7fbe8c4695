"""Time that a thread of GNU's OpenMP takes to look for the others, before it sleeps (``GOMP_SPINCOUNT``).

    python -m scripts.bench.looks --out "benchmarks/results/looks-{cpu}-2core-cpu.json"

A look is a load and the instruction ``pause``, whose length is the processor's own.  It is timed as workers do, in CPU
time, so the machine may be shared.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from scripts.bench.harness import flag, run_bench
from stratos.engine.native.looks import MAX_SPIN_NS, bounded_looks, look_ns

LOOKS_BEFORE = 10_000
"""Before the count was made here, everywhere the same."""


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Median of some runs, and the count that a worker would set."""
    runs = [found for _ in range(args.rounds) if (found := look_ns()) is not None]
    if not runs:
        raise SystemExit("looks cannot be timed: the kernels are not built, or torch has no OpenMP of its own")
    nanoseconds, looks = statistics.median(runs), bounded_looks()
    return {
        "ns_per_look": round(nanoseconds, 2), "looks": looks, "us": round(looks * nanoseconds / 1e3, 1),
        "us_of_looks_before": round(LOOKS_BEFORE * nanoseconds / 1e3, 1),
        "looks_in_50_us": int(MAX_SPIN_NS / nanoseconds), "runs_ns": [round(run, 2) for run in runs],
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(__doc__, bench, flag("--rounds", type=int, default=15))
