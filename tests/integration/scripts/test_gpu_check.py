"""The GPU check without a GPU: it says so, and its sections run in rehearsal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.support.reference.triton_interpreter  # noqa: F401  # before anything that imports Triton
from scripts.gpu import suites
from scripts.gpu.rig import Rig
from scripts.gpu_check import judged
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.timeout(240)
SCRIPT = ROOT / "scripts" / "gpu_check.py"
SECTIONS = [
    "tests",
    "decode",
    "ablations",
    "adapters",
    "attention",
    "sampling",
    "prefill",
    "sleep",
    "handoff",
    "products",
    "codes",
    "platform",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def rehearse(folder: Path, only: str) -> tuple[int, dict[str, Any]]:
    """Exit status, and the outcome of each section: several at once, as importing torch takes longer than most."""
    out = folder / "report.json"
    done = run("--rehearse", "--only", only, "--commit", "abc", "--out", str(out))
    report = json.loads(out.read_text())
    assert report["environment"]["commit"] == "abc"
    assert list(report["sections"]) == only.split(",")
    return done.returncode, report["sections"]


def test_it_names_its_sections() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == SECTIONS


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_2() -> None:
    done = run()
    assert done.returncode == 2
    assert "no GPU to check" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_section_that_breaks_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    status, sections = rehearse(tmp_path, "nonsense,tests,products")
    assert status == 1
    assert sections["nonsense"]["status"].startswith("no such section")
    assert sections["products"]["status"] == "ok"
    assert set(sections["products"]["results"]) == {
        "copy_gb_per_s", "small_efficiency", "small_candidates", "square_tflop_per_s",
    }  # fmt: skip
    tests = sections["tests"]
    assert tests["status"] == "failed in part: missing"
    assert tests["results"]["passing"]["counts"] == {"passed": 1}
    assert set(tests["results"]["kernels"]["counts"]) == {"skipped"}
    assert "no_such_file" in tests["results"]["missing"]["last_words"]


@pytest.mark.slow
def test_interpreted_kernels_are_measured_in_rehearsal(tmp_path: Path) -> None:
    status, sections = rehearse(tmp_path, "ablations,adapters,attention,sampling,codes")
    assert status == 0
    names = (
        "all_on", "gemm_choice_off", "prepare_kernel_off", "overlap_off", "graphs_off", "fused_ops_off", "split_kv_off",
        "balanced_kv_off", "sampled", "sampled_split_sampler_off", "untruncated", "untruncated_split_sampler_off",
        "sampled_sampler_off",
    )  # fmt: skip
    ablations, attention = sections["ablations"], sections["attention"]
    assert ablations["status"] == attention["status"] == "ok"
    assert all(ablations["results"][f"{name}_2"]["step_ms"] > 0 for name in names)
    assert all(
        sections["adapters"]["results"][name]["step_ms"] > 0 for name in ("0_of_3", "2_of_3", "2_of_3_one_by_one")
    )
    # adapters one by one run in no decode step, whose forward pass could be measured alone
    are_decode_steps = {name: "forward_ms" in result for name, result in sections["adapters"]["results"].items()
                        if "_of_" in name}  # fmt: skip
    assert are_decode_steps == {"0_of_3": True, "2_of_3": True, "2_of_3_one_by_one": False}
    assert attention["results"]["decode_2x40"]["us"] > 0
    assert attention["results"]["decode_equal_parts_2x40"]["us"] > 0
    assert attention["results"]["prefill_24"]["us"] > 0
    assert set(sections["codes"]["results"]["errors"]) == {"nvfp4", "int4", "int8", "fp8", "int8-rows", "llm-int8"}
    sampled = sections["sampling"]["results"]["top_k_top_p_2x300"]
    ways = ("split", "one_program_a_row", "sorted_on_device", "host", "host_sorted")
    assert sampled["differing_tokens"] == dict.fromkeys(ways, 0)
    assert sampled["split_ms_per_token"] > 0
    assert sampled["host_ms_per_token"] > 0


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ({"a": {"ms": 1}, "b": 2.0}, {"status": "ok"}),
        ({"a": {"ms": 1}, "b": {"skipped": "no time left"}}, {"status": "ok", "not_run": ["b"]}),
        ({"a": {"skipped": "not installed: httpx"}}, {"status": "not run", "not_run": ["a"]}),
        ({"a": {"error": "x"}, "b": {"skipped": "y"}}, {"status": "failed in part: a", "not_run": ["b"]}),
        ({"a": {"counts": {"passed": 3, "skipped": 1}}}, {"status": "ok"}),
    ],
)
def test_what_did_not_run_is_named_and_a_section_without_the_rest_is_not_ok(
    results: dict[str, Any], found: dict[str, Any]
) -> None:
    assert judged("ok", results) == found
    assert judged("exit code 1", results)["status"] == "exit code 1"


def test_a_suite_whose_tests_were_all_skipped_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = {"skipped": "import pytest\ndef test(): pytest.skip('no reason')\n", "passed": "def test(): pass\n"}
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "tests" / "gpu" / "pytest.ini").write_text("[pytest]\n")
    for name, text in tests.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "SUITES", {name: [f"test_{name}.py"] for name in tests})
    rig = Rig(tmp_path / "section.json", is_rehearsal=False, deadline_s=time.monotonic() + LIMIT_S)
    suites.run(rig)
    assert rig.results["skipped"]["error"] == "none of its 1 tests ran"
    assert "error" not in rig.results["passed"]
