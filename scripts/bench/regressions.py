"""Compare this tree with another commit by CPU time, by turns; exit 1 where this tree is slower.

    make bench-compare REF=main
    python -m scripts.bench.regressions --ref main --only "5.5M" "top-p" --out FILE

The commit gets a worktree under ``build/compare``, which stays for the next time.  It takes this tree's packages where
both commits ask for the same ones, and this tree's kernels where their sources are the same; else its own are installed
and compiled.  Both trees run this tree's benchmark, so the engine's constructors must not have changed in between.

Slower is what a median of the rounds' ratios says that lies above ``--bound`` by more than half the distance of their
quartiles: a machine that others use makes the rounds differ, and that widens what passes.  What looks slower is
measured once more, and the second time counts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.decode_steps import LOADS, Arm, Load, running_arms, timed_load
from scripts.bench.harness import ROOT, by_turns, flag, run_bench, show, table
from scripts.bench.sampling import CASES

FOLDER = ROOT / "build" / "compare"
NATIVE = Path("libs/stratos/engine/native")
USUAL = (
    "step, 5.5M float32, 1 at 128", "step, 5.5M float32, 8 at 1024", "step, 213M bfloat16, 1 at 128",
    "step, 213M bfloat16, 8 at 1024", "sampling, temperature 1, flat", "sampling, top-p 0.95, flat",
    "sampling, top-k 5000, flat", "sampling, penalties, top-p 0.95, peaked",
)  # fmt: skip
VOCAB = 32_000
BOUND, ROUNDS, FEWEST_ROUNDS = 1.1, 5, 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rounds of one measurement say: times of this tree over those of the other commit."""

    name: str
    ratios: tuple[float, ...]
    bound: float = BOUND

    @property
    def median(self) -> float:
        """Ratio that counts."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles."""
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return (high - low) / 2

    @property
    def is_slower(self) -> bool:
        """Above the bound by more than the rounds differ."""
        return self.median - self.spread > self.bound

    def row(self) -> dict[str, Any]:
        """As the document has it."""
        rounded = [round(ratio, 3) for ratio in self.ratios]
        figures = {"median": round(self.median, 3), "spread": round(self.spread, 3)}
        return {"name": self.name, **figures, "ratios": rounded, "is_slower": self.is_slower}


def git(*words: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def worktree(ref: str) -> Path:
    """A tree of the commit, which can be measured."""
    commit = git("rev-parse", "--verify", f"{ref}^{{commit}}")
    tree = FOLDER / commit[:12]
    if not tree.exists():
        git("worktree", "prune")  # one that was deleted by hand may be made again
        git("worktree", "add", "--quiet", "--detach", str(tree), commit)
    environment = tree / ".venv"
    if packages(tree) != packages(ROOT):
        subprocess.run(["make", "setup"], cwd=tree, check=True)
    elif not environment.exists():
        environment.symlink_to(ROOT / ".venv")
    provide_kernels(tree, compile_kernels)
    return tree


def packages(tree: Path) -> tuple[Any, ...]:
    """What an environment of this tree consists of."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    constraints = (tree / "constraints.txt").read_text(encoding="utf-8")
    return constraints, project["dependencies"], project["optional-dependencies"]


def provide_kernels(tree: Path, compile_missing: Callable[[Path], None]) -> None:
    """Copy this tree's kernels where they come from the same files, and compile what is missing then."""
    if sources(tree) == sources(ROOT):
        for library in (ROOT / NATIVE).glob("*.so"):
            shutil.copy(library, tree / NATIVE)
    compile_missing(tree)


def compile_kernels(tree: Path) -> None:
    """Those that this machine runs; current ones stay."""
    build = [str(tree / ".venv" / "bin" / "python"), "-m", "stratos.engine.native.build"]
    subprocess.run(build, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "libs")}, check=True)


def sources(tree: Path) -> dict[str, bytes]:
    """Files that decide what the kernels are."""
    return {path.name: path.read_bytes() for path in (tree / NATIVE).iterdir() if path.suffix in {".cpp", ".h", ".py"}}


def ratios(runs: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """This tree over the other, round by round."""
    return tuple(this / other for this, other in zip(runs["this"], runs["other"], strict=True))


def step_ratios(arms: dict[str, Arm], load: Load, rounds: int) -> tuple[float, ...]:
    """Whole steps of one load."""
    runs = timed_load(arms, load, rounds)
    return ratios({arm: [one["step_ms"] for one in own] for arm, own in runs.items()})


def case_ratios(arms: dict[str, Arm], case: str, rounds: int) -> tuple[float, ...]:
    """Rows of one case of the sampler."""
    return ratios(by_turns(rounds, arms, lambda arm, _: arms[arm].ask("sample", VOCAB, case)))


def confirmed(name: str, measure: Callable[[int], tuple[float, ...]], args: argparse.Namespace) -> Verdict:
    """Verdict of the rounds, or of as many more where the first ones are above the bound."""
    verdict = Verdict(name, measure(args.rounds), args.bound)
    show(verdict.row())
    if verdict.is_slower:
        verdict = Verdict(name, measure(args.rounds), args.bound)
        show({"again": True, **verdict.row()})
    return verdict


def verdicts(arms: dict[str, Arm], names: Sequence[str], args: argparse.Namespace) -> list[Verdict]:
    """Every load of decode and case of the sampler that is wanted."""
    loads = [load for load in LOADS if f"step, {load.name}" in names]
    cases = [case for case in CASES if f"sampling, {case}" in names]
    return [
        *(confirmed(f"step, {one.name}", partial(step_ratios, arms, one), args) for one in loads),
        *(confirmed(f"sampling, {one}", partial(case_ratios, arms, one), args) for one in cases),
    ]


def wanted(only: Sequence[str] | None) -> list[str]:
    """Names of what is measured: those that hold one of the texts, or those of every run."""
    every = [*(f"step, {load.name}" for load in LOADS), *(f"sampling, {case}" for case in CASES)]
    return [name for name in every if (any(text in name for text in only) if only else name in USUAL)]


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both trees by turns."""
    if args.rounds < FEWEST_ROUNDS:
        raise SystemExit(f"--rounds {args.rounds}: fewer than {FEWEST_ROUNDS} have no spread")
    names = wanted(args.only)
    other = worktree(args.ref)
    commits = {"this": git("describe", "--always", "--dirty", "--abbrev=12"), "other": other.name}
    models = {load.model for load in LOADS if f"step, {load.name}" in names}
    with running_arms({"this": ROOT, "other": other}, models) as arms:
        found = verdicts(arms, names, args)
    rows = [one.row() for one in found]
    lines = table(("what", "verdict", "median", "spread", *(f"round {turn + 1}" for turn in range(args.rounds))), [
        (one.name, "SLOWER" if one.is_slower else "fine", f"{one.median:.3f}", f"{one.spread:.3f}",
         *(f"{ratio:.3f}" for ratio in one.ratios))
        for one in found
    ])  # fmt: skip
    return {"commits": commits, "bound": args.bound, "rounds": args.rounds, "rows": rows, "table": lines}


if __name__ == "__main__":
    body = run_bench(
        __doc__,
        bench,
        flag("--ref", required=True, help="commit, branch or tag to compare with"),
        flag("--rounds", type=int, default=ROUNDS),
        flag("--bound", type=float, default=BOUND, help="ratio of times from which on this tree is slower"),
        flag("--only", nargs="+", help="loads and cases whose names hold one of these texts"),
    )
    sys.exit(any(row["is_slower"] for row in body["rows"]))
