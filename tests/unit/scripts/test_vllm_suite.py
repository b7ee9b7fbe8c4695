"""vLLM's own tests: what fails here alone has a reason, and a reason is of tests that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.vllm_suite.plugin import LEFT_OUT
from scripts.vllm_suite.selection import NO_SERVER, chosen_files
from scripts.vllm_suite.table import compare, faults, left_out, markdown, read_reasons, reason_name
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
    unrun = compare(outcomes(other="passed"), {}, REASONS)
    assert faults(unrun, {}, is_whole=False) == []
    assert faults(unrun, {}, is_whole=True) == ["ab.py::two fails here alone, without a reason"]
    assert faults(rows, REASONS, is_whole=True) == ["a.py::one[x] has a reason and does not fail here alone"]


def test_what_is_left_out_on_either_side_is_compared_on_none_and_counted_once() -> None:
    theirs, ours = outcomes(one="passed", two="passed"), outcomes(one="left out", two="passed")
    assert [(row["test"], row["verdict"]) for row in compare(theirs, ours, {})] == [("a.py::two", "both")]
    assert left_out(theirs, ours) == {"assert 0": 1}


def test_files_that_ask_no_server_or_want_another_model_are_left_out_by_their_reason(tmp_path: Path) -> None:
    texts = {
        "openai/test_a.py": "with RemoteOpenAIServer(MODEL, args) as server: ...",
        "openai/test_b.py": "async def test_b(client: OpenAI): ...",
        "openai/test_c.py": "def test_c(): ...",
        "openai/test_d.py": 'MODEL = "openai/gpt-oss-20b"\nRemoteOpenAIServer(MODEL)',
        "pooling/test_e.py": "RemoteOpenAIServer(MODEL)",
        "other/test_f.py": "RemoteOpenAIServer(MODEL)",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found, dropped = chosen_files(tmp_path, ["openai", "pooling/test_e.py"])
    assert found == ["openai/test_a.py", "openai/test_b.py"]
    gpt_oss, pooling = "it wants gpt-oss, of 20 B", "it wants a model of embeddings or scores"
    assert dropped == {NO_SERVER: 1, gpt_oss: 1, pooling: 1}


@pytest.mark.parametrize(
    ("name", "is_left_out"),
    [
        ("openai/chat_completion/test_chat.py::test_single[zephyr-lora]", True),
        ("openai/chat_completion/test_chat.py::test_single[base]", False),
        ("serve/lora/test_x.py::test_y", False),
        ("openai/chat_completion/test_chat.py::test_structured_outputs_regex_chat", True),
        ("openai/chat_completion/test_chat.py::test_structured_outputs_json_chat", False),
    ],
)
def test_cases_that_hang_on_an_adapter_or_on_chance_are_left_out(name: str, is_left_out: bool) -> None:
    assert any(pattern.search(name) for pattern, _ in LEFT_OUT) is is_left_out


def test_every_failure_here_alone_of_the_committed_run_has_its_reason_and_no_reason_is_of_a_test_that_passed() -> None:
    rows, reasons = RESULTS["tests"], read_reasons()
    assert [row["test"] for row in rows if row["verdict"] == "here" and not reason_name(row["test"], reasons)] == []
    held = {name: {row["ours"] for row in rows if reason_name(row["test"], reasons) == name} for name in reasons}
    assert {name: ours for name, ours in held.items() if ours != {"failed"}} == {}


def test_the_document_has_every_reason() -> None:
    text = (ROOT / "docs/api.md").read_text()
    assert [reason for reason in read_reasons().values() if f"\n- {reason}.\n" not in text] == []
