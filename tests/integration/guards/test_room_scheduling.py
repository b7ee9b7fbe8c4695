"""Processes of the tests that die: their tests are handed out again, and the run ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from tests.support.shared_platforms import RoomScheduling

def pytest_xdist_make_scheduler(config, log):
    return RoomScheduling(config, log)
"""
FILES = {
    "test_a.py": "def test_1(): pass\ndef test_2(): pass\n",
    "test_b.py": "import os\ndef test_1(): pass\ndef test_crash(): os._exit(1)\ndef test_3(): pass\n",
    "test_c.py": "def test_1(): pass\n",
    "test_d.py": "import os\ndef test_crash(): os._exit(1)\n",
    "test_e.py": "def test_1(): pass\n",
}


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_a_process_that_dies_costs_the_test_that_it_died_of(num_processes: int, tmp_path: Path) -> None:
    for name, text in {"conftest.py": CONFTEST, **FILES}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", str(num_processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    options = {"PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 failed, 6 passed" in run.stdout, run.stdout + run.stderr
