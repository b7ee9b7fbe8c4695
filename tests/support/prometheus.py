"""Debian's Prometheus and its tool, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

NO_PROMETHEUS = "left out, Prometheus is not installed (apt-get install prometheus): "


def need(program: str, what: str) -> str:
    """Path of ``prometheus`` or ``promtool``; without it the test is skipped, which says what was left out."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(NO_PROMETHEUS + what)
    return found


def promtool(*arguments: str | Path, what: str) -> str:
    """Run promtool; it must succeed. Returns what it printed."""
    argv = [need("promtool", what), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def ask(url: str, query: str) -> list[dict[str, object]]:
    """The result of an instant query."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=30)
    assert answer.status_code == 200, f"{query}: {answer.text}"
    return list(answer.json()["data"]["result"])
