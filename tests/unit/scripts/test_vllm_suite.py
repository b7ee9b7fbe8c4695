"""vLLM's own tests: what fails here alone has a reason, and what the documents say of the last run is what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.vllm_suite.table import compare, counts, faults, markdown, read_reasons
from tests.support.paths import ROOT

RESULTS: dict[str, Any] = json.loads((ROOT / "benchmarks/results/vllm-suite-2core-cpu.json").read_text())
REASONS = {"a.py": "Of all.", "a.py::one[x]": "Of a case."}


def outcomes(**each: str) -> dict[str, dict[str, Any]]:
    rows = {"one": "a.py::one[x]", "two": "a.py::two", "other": "ab.py::two"}
    return {
        rows[name]: {"outcome": outcome, "reason": "assert 0", "requests": ["GET /v1/models"]}
        for name, outcome in each.items()
    }


def test_the_longest_name_of_a_reason_holds() -> None:
    rows = compare(outcomes(one="passed", two="passed"), outcomes(one="failed", two="failed"), REASONS)
    assert [(row["verdict"], row["why"]) for row in rows] == [("here", "Of a case."), ("here", "Of all.")]
    assert faults(rows, REASONS, is_whole=True) == []
    assert markdown(rows).splitlines()[2:] == ["| 1 | `one[x]` | Of a case. |", "| 1 | `two` | Of all. |"]


@pytest.mark.parametrize(
    ("ours", "fault"),
    [
        ({"one": "failed", "two": "failed", "other": "failed"}, "ab.py::two fails here alone, without a reason"),
        (
            {"one": "passed", "two": "failed", "other": "passed"},
            "a.py::one[x] has a reason and does not fail here alone",
        ),
        ({"one": "failed", "two": "passed", "other": "passed"}, "a.py has a reason and does not fail here alone"),
    ],
)
def test_a_failure_without_a_reason_is_a_fault_and_so_is_a_reason_without_one(ours: dict[str, str], fault: str) -> None:
    rows = compare(outcomes(one="passed", two="passed", other="passed"), outcomes(**ours), REASONS)
    assert faults(rows, REASONS, is_whole=True) == [fault]


def test_a_part_of_the_tests_says_nothing_of_the_others_reasons() -> None:
    rows = compare(outcomes(two="passed"), outcomes(two="failed"), REASONS)
    assert faults(rows, REASONS, is_whole=False) == []
    assert faults(rows, REASONS, is_whole=True) == ["a.py::one[x] has a reason and does not fail here alone"]


def test_the_committed_run_is_whole_and_every_failure_has_its_reason() -> None:
    rows = RESULTS["tests"]
    assert not [row for row in rows if "not run" in (row["vllm"], row["ours"])]
    assert faults(rows, read_reasons(), is_whole=True) == []
    assert RESULTS["counts"] == counts(rows)


def test_the_document_shows_it() -> None:
    text = (ROOT / "docs/api.md").read_text()
    assert markdown(RESULTS["tests"]) in text
    assert f"{RESULTS['counts']['both']} pass on both" in text
