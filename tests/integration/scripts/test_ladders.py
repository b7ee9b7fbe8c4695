"""Ladders of open streams and of rates, as the commands that they are, with two small numbers each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SMALL = {
    "open_streams": ("--streams", "4,8", "--step-ms", "200"),
    "request_rate": ("--rates", "4,8"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_ladder_writes_its_outcome_and_leaves_no_platform(name: str, tmp_path: Path) -> None:
    out, common = tmp_path / "open-here.json", ("--seconds", "2", "--least", "0.01", "--profile", "", "--out")
    command = [sys.executable, "-m", f"scripts.bench.{name}", *SMALL[name], *common, str(out)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["outcome"]["borne"], found["outcome"]["not_borne"], found["outcome"]["profile_of"]) == (8, None, 8)
    assert found["outcome"]["tokens_per_s"] > 0
    assert {"gateways", "routers", "workers", "client"} <= found["outcome"]["cores"].keys()
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "the platform's data are gone with it"
