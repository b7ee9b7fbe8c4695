"""Processes of pytest-xdist that are forks of one that has the tests imported."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.servers import collected_server
from tests.support.waiting import wait_until
from tests.support.worlds.platform_process import gone

CONFTEST = """
from tests.support.servers import collected_server
from tests.support.shared_platforms import RoomScheduling

def pytest_xdist_setupnodes(config, specs):
    collected_server.begin(config, specs)

def pytest_xdist_make_scheduler(config, log):
    return RoomScheduling(config, log)
"""
TESTS = """
import os, sys
ERRORS = sys.stderr
with open("imports", "a") as file:
    print(__name__, os.environ.get("PYTEST_XDIST_WORKER"), file=file)
def test_1(): assert os.environ["PYTEST_XDIST_WORKER"]
def test_crash(): os._exit(1)
def test_3(): assert not os.read(0, 1)
def test_4(): print("of the import", file=ERRORS, flush=True)
"""
ENDS_THE_SERVER = """
import os
if "PYTEST_XDIST_WORKER" not in os.environ: os._exit(3)
def test_1(): pass
"""
SLEEPER = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(60)"


def run_pytest(folder: Path, more: str = "", **files: str) -> subprocess.CompletedProcess[str]:
    """Two processes of pytest-xdist over some files, with more options."""
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    options = {"PYTEST_ADDOPTS": f"-p xdist -p no:cacheprovider {more}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_modules_are_imported_once_also_for_processes_that_come_for_dead_ones(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, test_a=TESTS, test_b=TESTS, test_broken="raise RuntimeError('why')")
    assert "2 failed, 6 passed, 4 errors" in run.stdout, run.stdout + run.stderr
    assert "RuntimeError: why" in run.stdout
    assert (tmp_path / "imports").read_text().splitlines() == ["test_a None", "test_b None"]


def test_a_file_that_cannot_be_imported_is_an_error_and_not_what_it_had_until_then(tmp_path: Path) -> None:
    """With this mode of ours pytest leaves it among the modules, and finds it there in each fork."""
    broken = "def test_1(): pass\nraise RuntimeError('why')"
    run = run_pytest(tmp_path, "--import-mode=importlib", test_a="def test_1(): pass", test_broken=broken)
    assert run.returncode != 0, run.stdout + run.stderr
    assert "RuntimeError: why" in run.stdout


def test_without_the_server_processes_import_the_tests_themselves(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, test_a=ENDS_THE_SERVER)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    assert "imports the tests itself" in run.stderr


@pytest.fixture
def interpreter(tmp_path: Path) -> Iterator[list[str]]:
    """Of a server whose only test is one that does nothing."""
    (tmp_path / "test_a.py").write_text("def test_1(): pass\n")
    ends: list[Callable[[], object]] = []
    spec = SimpleNamespace(python="")
    collected_server.begin(SimpleNamespace(args=[str(tmp_path)], add_cleanup=ends.append), [spec])  # type: ignore[arg-type]
    yield shlex.split(spec.python)
    ends[0]()


def test_a_fork_ends_with_the_process_that_was_started_for_it(interpreter: list[str]) -> None:
    with subprocess.Popen([*interpreter, "-u", "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(f"{SLEEPER!r}\n".encode())
        client.stdin.flush()
        fork = psutil.Process(int(client.stdout.readline()))
        assert fork.pid != client.pid
        client.kill()
    wait_until(lambda: gone([fork]), "the end of the fork")
