"""vLLM's own tests: what fails here alone has a reason, and a reason is of tests that fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scripts.vllm_suite.table import compare, faults, markdown, read_reasons, reason_name
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


def test_every_failure_here_alone_of_the_committed_run_has_its_reason_and_no_reason_is_of_a_test_that_passed() -> None:
    rows, reasons = RESULTS["tests"], read_reasons()
    assert [row["test"] for row in rows if row["verdict"] == "here" and not reason_name(row["test"], reasons)] == []
    held = {name: {row["ours"] for row in rows if reason_name(row["test"], reasons) == name} for name in reasons}
    assert {name: ours for name, ours in held.items() if ours != {"failed"}} == {}


def test_the_document_has_every_reason() -> None:
    text = (ROOT / "docs/api.md").read_text()
    assert [reason for reason in read_reasons().values() if f"\n- {reason}.\n" not in text] == []
