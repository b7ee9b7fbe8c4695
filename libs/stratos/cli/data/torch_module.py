"""A process with torch: its ask and its report are files of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_module(module: str, ask: Mapping[str, Any], threads: int) -> dict[str, Any] | None:
    """Run ``python -m module``; ``None`` if it broke: its own words are on stderr.

    Args:
        module: ``stratos.quality``, its ``trial``, or ``stratos.quantise``.
        ask: what it reads, paths as texts.
        threads: of the engines.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder, "ask.json"), Path(folder, "report.json")
        asked.write_text(json.dumps(ask), encoding="utf-8")
        command = [sys.executable, "-m", module, str(asked), str(out)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, check=False)
        if done.returncode or not out.is_file():
            return None
        report: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return report
