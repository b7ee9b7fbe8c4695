"""One run of the tests against one server.  A test that hangs fails, and the others go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.vllm_suite.installation import python_of
from scripts.vllm_suite.serving import SuiteServer

TEST_S = 120
SILENT_S = 300.0
"""Time without an outcome after which a run hangs: beyond that of one test, which pytest ends itself where it can."""
HUNG = f"no outcome within {SILENT_S:.0f} s"


def run_tests(folder: Path, source: Path, server: SuiteServer, out: Path, files: Sequence[str]) -> None:
    """Run the tests against one server; outcomes go to a file, a line each, and tests that have one are not run.

    Args:
        folder: of vLLM's installation.
        source: that vLLM's ``tests`` are in.
        server: that they ask.
        out: the outcomes.
        files: below ``tests/entrypoints``.
    """
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("plugin.py"), plugins / "suite_plugin.py")
    (source / "empty.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    env = {
        **os.environ, "SUITE_URL": server.url, "SUITE_KEY": server.key, "SUITE_OUT": str(out),
        "PYTHONPATH": f"{plugins}:{source}", "HF_HUB_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu",
    }  # fmt: skip
    command = [
        str(python_of(folder)), "-m", "pytest", "-q", "-c", "empty.ini", "--rootdir", str(source), "-p", "suite_plugin",
        "-p", "no:cacheprovider", "--continue-on-collection-errors", "--timeout", str(TEST_S), "--tb", "short",
        *(f"tests/entrypoints/{name}" for name in files),
    ]  # fmt: skip
    now = out.with_suffix(".now")
    now.unlink(missing_ok=True)
    with out.with_suffix(".tests.log").open("ab") as log:
        while not _ends(subprocess.Popen(command, cwd=source, env=env, stdout=log, stderr=subprocess.STDOUT), out, now):
            row = {"test": now.read_text(), "outcome": "error", "reason": HUNG, "requests": ["?"]}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def _ends(process: subprocess.Popen[bytes], out: Path, now: Path) -> bool:
    """Wait for a run; false where it hung in a test and was ended."""
    size = -1
    while True:
        try:
            process.wait(timeout=SILENT_S)
        except subprocess.TimeoutExpired:
            grown = out.stat().st_size if out.exists() else 0
            if grown == size and now.exists():
                process.kill()
                process.wait()
                return False
            size = grown
        else:
            return True


def outcomes(path: Path) -> dict[str, dict[str, Any]]:
    """Rows of an outcomes file by the tests' names; nothing where that side has not run."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["test"].removeprefix("tests/entrypoints/"): row for row in rows}
