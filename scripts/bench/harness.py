"""Frame of every benchmark: its command line, its arms by turns, its figures, and the document that it writes.

A benchmark is a function from parsed arguments to the body of a document; ``run_bench(__doc__, measure, flag(...))``
under ``__main__`` makes it a command with ``--help`` and ``--out``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "base"
ArmT = TypeVar("ArmT", bound=Hashable)
RunT = TypeVar("RunT")


@dataclass(frozen=True, slots=True)
class Flag:
    """One argument of a benchmark, as ``argparse`` takes it."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


def flag(*names: str, **options: Any) -> Flag:
    """Declare an argument."""
    return Flag(names, options)


def run_bench(text: str, measure: Callable[[argparse.Namespace], dict[str, Any]], *flags: Flag) -> dict[str, Any]:
    """Parse the command line, measure, print, write the document where ``--out`` wants it, and return its body.

    Args:
        text: docstring of the benchmark, for ``--help``.
        measure: returns the document's body; a ``"table"`` in it is printed in its place, and not written.
        flags: arguments beside ``--out``.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the results; {cpu} in its name is this processor")
    for one in flags:
        parser.add_argument(*one.names, **one.options)
    args = parser.parse_args()
    where = environment()  # of the code that was loaded: a run takes minutes
    body = measure(args)
    summary = body.pop("table", "")
    document = json.dumps({"environment": where, **body}, indent=2)
    print(summary or document)
    if args.out is not None:
        out = args.out.with_name(args.out.name.replace("{cpu}", cpu_label(str(where["cpu"]))))
        out.write_text(document + "\n", encoding="utf-8")
    return body


def cpu_label(model: str) -> str:
    """Name of a processor in names of files: its family, and the fastest instruction set of the kernels."""
    from stratos.engine.native.isa import cpu_flags, supported_sets

    family = next((name for name in ("epyc", "xeon", "ryzen", "core") if name in model.lower()), "cpu")
    sets = [isa.name for isa in supported_sets(cpu_flags())]
    return f"{family}-{sets[0].removeprefix('avx512-') if sets else 'torch'}"


def environment() -> dict[str, Any]:
    """Machine, versions and commit that the numbers belong to."""
    import torch

    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    names = [value.strip() for name, _, value in lines if name.strip() in ("model name", "CPU implementer")]
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "cpu": next(iter(names), ""),
        "cores": os.cpu_count(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "commit": git.stdout.strip(),
    }


def by_turns(rounds: int, arms: Iterable[ArmT], measure: Callable[[ArmT, int], RunT]) -> dict[ArmT, list[RunT]]:
    """Runs of every arm: each arm once in every round, so that all see the same machine.

    Args:
        rounds: runs of each arm.
        arms: compared with one another.
        measure: one run of an arm, in the round with this number.
    """
    runs: dict[ArmT, list[RunT]] = {arm: [] for arm in arms}
    for turn in range(rounds):
        for arm, found in runs.items():
            found.append(measure(arm, turn))
    return runs


def show(row: Any) -> None:
    """Print an intermediate result on stderr."""
    print(json.dumps(row, default=str), file=sys.stderr, flush=True)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, is_markdown: bool = False) -> str:
    """Columns for a terminal, the first two flush left, or a table in Markdown."""
    cells = [list(titles), *(list(row) for row in rows)]
    if is_markdown:
        cells.insert(1, ["---", "---"] + ["---:"] * (len(titles) - 2))
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    aligned = ["<" if column < 2 else ">" for column in range(len(titles))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip()
        for row in cells
    )
