"""Verdict of the comparison of two commits: what is slower, and what only looks so on a busy machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from scripts.bench.regressions import NATIVE, USUAL, Verdict, confirmed, packages, provide_kernels, ratios, wanted


@pytest.mark.parametrize(
    ("rounds", "bound", "is_slower"),
    [
        ((1.30, 1.28, 1.31, 1.29, 1.32), 1.1, True),
        ((1.05, 1.06, 1.04, 1.05, 1.05), 1.1, False),
        ((1.05, 1.06, 1.04, 1.05, 1.05), 1.0, True),
        ((1.12, 0.80, 1.60, 0.95, 1.30), 1.1, False),  # the median is above the bound, by less than rounds differ
        ((1.30, 1.28, 9.00, 1.29, 1.32), 1.1, True),  # one round beside other work hides nothing
        ((1.00, 1.00, 9.00, 1.01, 0.99), 1.1, False),  # nor does it accuse
        ((0.50, 0.51, 0.49), 1.1, False),
    ],
)
def test_slower_is_above_the_bound_by_more_than_the_rounds_differ(
    rounds: tuple[float, ...], bound: float, is_slower: bool
) -> None:
    verdict = Verdict("step", rounds, bound)
    assert verdict.is_slower is is_slower
    assert verdict.row()["is_slower"] is is_slower


def test_a_ratio_is_of_one_round() -> None:
    assert ratios({"this": [2.0, 30.0], "other": [1.0, 20.0]}) == (2.0, 1.5)


@pytest.mark.parametrize(
    ("times", "is_slower", "num_measured"),
    [([1.0], False, 1), ([1.4, 1.0], False, 2), ([1.4, 1.3], True, 2)],
)
def test_what_looks_slower_is_measured_once_more(times: list[float], is_slower: bool, num_measured: int) -> None:
    found: list[int] = []

    def measure(rounds: int) -> tuple[float, ...]:
        found.append(rounds)
        return (times[len(found) - 1],) * rounds

    verdict = confirmed("step", measure, argparse.Namespace(rounds=5, bound=1.1))
    assert (verdict.is_slower, found) == (is_slower, [5] * num_measured)


def test_what_is_measured_without_a_wish_is_a_fixed_list() -> None:
    assert wanted(None) == list(USUAL)
    assert set(wanted(["5.5M float32, 32 at 1024"])) == {"step, 5.5M float32, 32 at 1024"}
    assert "sampling of 128256, top-p 0.1, flat" in wanted(["top-p"])


def tree(root: Path, constraints: str = "torch==1\n", source: str = "int x;") -> Path:
    (root / NATIVE).mkdir(parents=True)
    (root / NATIVE / "sampling.cpp").write_text(source)
    (root / "constraints.txt").write_text(constraints)
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["torch"]\noptional-dependencies = {}\n')
    return root


def test_packages_are_shared_where_both_commits_ask_for_the_same(tmp_path: Path) -> None:
    this, same, other = tree(tmp_path / "a"), tree(tmp_path / "b"), tree(tmp_path / "c", "torch==2\n")
    (same / "pyproject.toml").write_text((this / "pyproject.toml").read_text() + "[tool.ruff]\nline-length = 1\n")
    assert packages(same) == packages(this)
    assert packages(other) != packages(this)


@pytest.mark.parametrize(("source", "copied"), [("int x;", ["kernels-a.so"]), ("int y;", [])])
def test_kernels_are_copied_where_they_come_from_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, copied: list[str]
) -> None:
    this, other = tree(tmp_path / "this"), tree(tmp_path / "other", source=source)
    (this / NATIVE / "kernels-a.so").write_bytes(b"code")
    compiled: list[Path] = []
    module = sys.modules[Verdict.__module__]
    monkeypatch.setattr(module, "ROOT", this)
    provide_kernels(other, compiled.append)
    assert [path.name for path in (other / NATIVE).glob("*.so")] == copied
    assert compiled == [other], "what is missing is compiled"
