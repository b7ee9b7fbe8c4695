"""Processes of the tests: each side begins with its own files; the tests of one that dies are handed out again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
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


WHO = """
import os
def test_1():
    with open(os.environ["PYTEST_XDIST_WORKER"], "a") as file:
        print(__file__.split(os.sep)[-2], file=file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 3])
def test_a_process_that_dies_costs_the_test_that_it_died_of(num_processes: int, tmp_path: Path) -> None:
    found = run(tmp_path, num_processes, FILES)
    assert "2 failed, 6 passed" in found.stdout, found.stdout + found.stderr


def test_half_of_the_processes_take_what_waits_and_the_others_what_computes(tmp_path: Path) -> None:
    for folder in ("tests/conformance", "tests/integration", "tests/integration/platform", "tests/unit"):
        (tmp_path / folder).mkdir(parents=True)
    run(tmp_path, 2, {f"tests/{room}/test_{room}.py": WHO for room in ("conformance", "integration", "unit")}
        | {"tests/integration/platform/test_a.py": WHO})  # fmt: skip
    firsts = [(tmp_path / name).read_text().split()[0] for name in ("gw0", "gw1")]
    assert firsts == ["platform", "conformance"]


def run(folder: Path, num_processes: int, files: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Some files of tests in so many processes."""
    for name, text in {"conftest.py": CONFTEST, **files}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", str(num_processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    options = {"PYTEST_ADDOPTS": "-p xdist -p no:cacheprovider", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
