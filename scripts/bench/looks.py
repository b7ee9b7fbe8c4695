"""Time that a thread of GNU's OpenMP takes to look for the others, before it sleeps (``GOMP_SPINCOUNT``).

    python -m scripts.bench.looks --out benchmarks/results/looks-CPU.json

A look is a load and the instruction ``pause``, whose length is the processor's own.  A program of a few lines is
compiled and does as the runtime does, in CPU time of one thread, so the machine may be shared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench.harness import flag, run_bench
from stratos.engine.native.build import find_compiler
from stratos.worker.engine_client.factory import SPINS

GOAL_US = 50.0
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now_us(void) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
int main(int, char **words) {
    int flag = 0;
    double begin = now_us();
    for (long look = atol(words[1]); look && !__atomic_load_n(&flag, __ATOMIC_RELAXED); look--) __builtin_ia32_pause();
    printf("%f", now_us() - begin);
}
"""


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Median of some runs of as many looks as workers set."""
    looks = int(SPINS[1])
    if (compiler := find_compiler()) is None:
        raise SystemExit("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "looks.cpp"), Path(folder, "looks")
        source.write_text(PROGRAM)
        subprocess.run([compiler, "-O2", str(source), "-o", str(program)], check=True)
        runs = [
            float(subprocess.run([program, str(looks)], capture_output=True, text=True, check=True).stdout)
            for _ in range(args.rounds)
        ]
    us = statistics.median(runs)
    return {
        "looks": looks, "us": round(us, 1), "ns_per_look": round(1e3 * us / looks, 2),
        "looks_in_50_us": int(GOAL_US / us * looks), "runs_us": [round(run, 1) for run in runs],
    }  # fmt: skip


if __name__ == "__main__":
    run_bench(__doc__, measure, flag("--rounds", type=int, default=15))
