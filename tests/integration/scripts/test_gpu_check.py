"""The GPU check without a GPU: it says so, and its sections run in rehearsal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(240)
SCRIPT = ROOT / "scripts" / "gpu_check.py"
SECTIONS = ["tests", "decode", "ablations", "attention", "prefill", "handoff", "products"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=220)


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
    assert set(sections["products"]["results"]) == {"copy_gb_per_s", "small_efficiency", "square_tflop_per_s"}
    tests = sections["tests"]
    assert tests["status"] == "failed in part: missing"
    assert tests["results"]["passing"]["counts"] == {"passed": 1}
    assert set(tests["results"]["kernels"]["counts"]) == {"skipped"}
    assert "no_such_file" in tests["results"]["missing"]["last_words"]


@pytest.mark.slow
def test_interpreted_kernels_are_measured_in_rehearsal(tmp_path: Path) -> None:
    status, sections = rehearse(tmp_path, "ablations,attention")
    assert status == 0
    names = ("all_on", "overlap_off", "graphs_off", "fused_ops_off", "split_kv_off", "sampled", "sampled_sampler_off")
    ablations, attention = sections["ablations"], sections["attention"]
    assert ablations["status"] == attention["status"] == "ok"
    assert all(ablations["results"][f"{name}_2"]["step_ms"] > 0 for name in names)
    assert attention["results"]["decode_2x40"]["us"] > 0
    assert attention["results"]["prefill_24"]["us"] > 0
