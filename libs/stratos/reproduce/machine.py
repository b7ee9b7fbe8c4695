"""Where figures were measured: hardware, versions, commit, and how much of the machine others took while they were."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MAX_FOREIGN_SHARE = 0.05
"""Share of all cores' time: with more taken by others, figures are those of a loaded machine, and say so."""
_LEAST_JUDGED_S = 1.0
"""Seconds of all cores, together: of less than that the kernel's ticks of 10 ms say nothing."""
CODE = ("libs", "services", "models", "pyproject.toml", "constraints.txt")
_ROOT = Path(__file__).resolve().parents[3]


def read_environment() -> dict[str, Any]:
    """Machine, versions, commit and date: rows of one report may be of several days."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.system(),
        "python": sys.version.split()[0],
        "torch": _version("torch"),
        "stratosserve": _version("stratosserve"),
        "commit": read_commit(),
        "utc": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def read_commit() -> str:
    """Commit of the code, with ``+`` behind it where its files differ from it; empty outside of a repository.

    A document or a result that was written since changes no figure.
    """
    commit = _git("rev-parse", "HEAD")
    return commit + "+" if commit and _git("status", "--porcelain", "--untracked-files=no", "--", *CODE) else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in named if name.strip() in ("model name", "CPU implementer")), "")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the kernel's driver shows a GPU that CUDA can use."""
    return any(devices.glob("nvidia[0-9]*"))


class LoadWatch:
    """Processor time of this process and of all others, from its making on."""

    def __init__(self) -> None:
        self._began = (busy_and_total_s(), self._own_s())

    def as_json(self) -> dict[str, Any]:
        """Own CPU seconds, the share of the machine that others took, and whether that is too much to compare."""
        (busy_then, total_then), own_then = self._began
        (busy, total), own_s = busy_and_total_s(), self._own_s() - own_then
        passed_s = total - total_then
        share = max(0.0, busy - busy_then - own_s) / passed_s if passed_s >= _LEAST_JUDGED_S else 0.0
        return {"cpu_s": round(own_s, 2), "foreign_share": round(share, 3), "loaded": share > MAX_FOREIGN_SHARE}

    @staticmethod
    def _own_s() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system


def busy_and_total_s() -> tuple[float, float]:
    """Seconds of all cores since the start of the machine; both 0 where there is no ``/proc``."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0.0, 0.0
    # user nice system idle iowait irq softirq steal: what another guest of the host took counts as taken
    ticks = [int(field) for field in first.split()[1:9]]
    per_s = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / per_s, sum(ticks) / per_s
