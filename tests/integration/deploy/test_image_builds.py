"""Images are built at once where that is asked for, the first one alone, and a failure ends the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BUILDER = """#!/bin/sh
name=${2#team/}
echo "begin $name" >>$LOG
[ $name != $FAILING:t ] || exit 7
echo "end $name" >>$LOG
"""


def build(folder: Path, failing: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The command's end, and what its builder was asked for."""
    builder, log = folder / "builder", folder / "log"
    builder.write_text(BUILDER)
    builder.chmod(0o755)
    command = [
        sys.executable,
        "scripts/images/build_images.py",
        "--no-sbom",
        "--tag=t",
        "--repository=team",
        *arguments,
    ]
    done = subprocess.run(
        [*command, f"--builder={builder}"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"LOG": str(log), "FAILING": failing, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return done, log.read_text().splitlines()


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_all_are_built_and_the_first_is_there_before_others_begin(tmp_path: Path, jobs: str) -> None:
    done, log = build(tmp_path, "none", f"--jobs={jobs}")
    assert done.returncode == 0, done.stderr
    assert log[:2] == ["begin gateway:t", "end gateway:t"]
    assert {line.removeprefix("end ") for line in log if line.startswith("end")} == {
        f"{name}:t" for name in ("gateway", "worker", "lora-registry", "router", "autoscaler", "model-demo", "redis")
    }


def test_nothing_is_begun_after_a_failure(tmp_path: Path) -> None:
    done, log = build(tmp_path, "worker", "--only=gateway,worker,router")
    assert done.returncode == 1
    assert "ended with 7" in done.stderr
    assert "begin router:t" not in log
