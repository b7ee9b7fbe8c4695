"""Threads of a team do not look for one another for long: a process that loads an engine, as a worker does."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

ENGINE = f"""
from pathlib import Path
import stratos_decode_worker.__main__
from stratos.engine.settings import RunnerConfig
from stratos.worker.engine_client.factory import make_engine
from stratos.worker.settings import WorkerSettings
runner = RunnerConfig(model_path=Path({str(ROOT / "models" / "draft")!r}), num_threads=1, kv_pool_bytes=16 << 20)
make_engine(WorkerSettings(runner=runner, device="cpu"))
"""


@pytest.mark.parametrize(
    ("told", "spins"),
    [
        ({}, "10000"),
        pytest.param({"GOMP_SPINCOUNT": "7"}, "7", marks=pytest.mark.slow),
        pytest.param({"OMP_WAIT_POLICY": "PASSIVE"}, "0", marks=pytest.mark.slow),
    ],
)
def test_openmp_learns_how_long_threads_look_for_one_another(told: dict[str, str], spins: str) -> None:
    env = {name: content for name, content in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    env |= {"OMP_DISPLAY_ENV": "VERBOSE", **told}
    done = subprocess.run([sys.executable, "-c", ENGINE], env=env, capture_output=True, text=True, check=True)
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)) == {spins}
