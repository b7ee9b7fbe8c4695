"""The guard that tests put into every process of a platform refuses and notes connections to the outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import FIXTURES
from tests.support.servers import warm_process

GUARD = FIXTURES / "network_guard"


def test_the_guard_itself_refuses(tmp_path: Path) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    env = {**os.environ, "PYTHONPATH": str(GUARD), "NETWORK_GUARD_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "the network guard refused" in done.stderr
    assert list(tmp_path.glob("blocked-*"))


def test_a_warm_process_has_it_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from socket import create_connection\ncreate_connection(('192.0.2.1', 80), timeout=1)\n")
    env = {**os.environ, "PYTHONPATH": str(GUARD), "NETWORK_GUARD_DIR": str(tmp_path)}
    assert "the network guard refused" in warm_process.run(str(program), env=env).stderr
    assert list(tmp_path.glob("blocked-*"))
