"""SDKs whose pins are not ours, each program in the environment that ``make test-clients`` has made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.worlds.platform_process import PlatformProcess, running_platform

PYTHON = ROOT / ".venv-clients" / "bin" / "python"
PROGRAMS = sorted((ROOT / "examples" / "sdk").glob("*.py"))
pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with running_platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_of_sdks_run(platform: PlatformProcess, program: Path) -> None:
    env = {**os.environ, "BASE_URL": platform.base_url, "API_KEY": platform.api_key}
    done = subprocess.run([PYTHON, program], env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
