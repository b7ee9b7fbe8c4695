"""Debian's Prometheus and its tool, which tests with the marker ``monitoring`` need."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import LIMIT_S

MISSING = "Prometheus is not installed (apt-get install prometheus), so this cannot be tried: "


def need(program: str, what: str) -> str:
    """Path of ``prometheus`` or ``promtool``; without it the test fails, and says what it could not try."""
    found = shutil.which(program)
    if found is None:
        pytest.fail(MISSING + what, pytrace=False)
    return found


def promtool(*arguments: str | Path, what: str) -> str:
    """Run promtool; it must succeed. Returns what it printed."""
    argv = [need("promtool", what), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def ask(url: str, query: str) -> list[dict[str, Any]]:
    """The result of an instant query."""
    return list(fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}")["data"]["result"])


def fetch(url: str) -> Any:
    """JSON of a GET; without httpx, which makes a TLS context for each call."""
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return json.loads(answer.read())
