"""Frame of the benchmarks: every one can be started, arms take turns, and results are written where they are wanted."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.harness import by_turns, flag, run_bench, table
from tests.support.paths import ROOT

MODULES = sorted(path.stem for path in (ROOT / "scripts" / "bench").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_finds_its_imports_and_documents_its_command(name: str) -> None:
    module = importlib.import_module(f"scripts.bench.{name}")
    if hasattr(module, "bench"):
        assert f"python -m scripts.bench.{name}" in module.__doc__
        assert "run_bench(" in Path(module.__file__).read_text()


def test_every_arm_has_its_run_in_every_round() -> None:
    order: list[tuple[str, int]] = []
    runs = by_turns(2, ("a", "b"), lambda arm, turn: order.append((arm, turn)) or f"{arm}{turn}")
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert runs == {"a": ["a0", "a1"], "b": ["b0", "b1"]}


def test_tables_for_terminals_and_for_documents() -> None:
    rows = [("x", "first", "1.5"), ("longer", "y", "20.25")]
    assert table(("a", "b", "c"), rows).splitlines() == [
        "a       b          c",
        "x       first    1.5",
        "longer  y      20.25",
    ]
    assert table(("a", "b", "c"), rows[:1], is_markdown=True).splitlines() == [
        "| a | b | c |",
        "| --- | --- | ---: |",
        "| x | first | 1.5 |",
    ]


def test_a_document_names_its_machine_and_leaves_the_table_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(args: argparse.Namespace) -> dict[str, Any]:
        return {"rounds": args.rounds, "table": "a table"}

    out = tmp_path / "x.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--rounds", "3", "--out", str(out)])
    run_bench("Measure nothing.", bench, flag("--rounds", type=int))
    document = json.loads(out.read_text())
    assert document.keys() == {"environment", "rounds"}
    assert document["rounds"] == 3
    assert document["environment"]["cores"] > 0
    assert capsys.readouterr().out == "a table\n"
