"""Means of this machine for a process: processor, cores and memory, within the limits of its container.

Reads Linux' ``/proc`` and ``/sys``; where a file is missing, the limit that it would name does not exist.  Nothing is
measured and nothing is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number near 2**63 for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processor and memory, as this process may use them."""

    cpu_name: str
    cpu_flags: frozenset[str]
    num_cores: int
    """That the process may run on; a quota of CPU time that allows fewer counts, rounded up."""
    num_sockets: int
    """Memory nodes (NUMA)."""
    total_bytes: int
    """Memory of the machine, or the container's limit where that is less; 0 where the system does not tell."""
    available_bytes: int
    """Bytes that can still be taken without swapping or being killed; 0 where the system does not tell."""
    limited_by: str
    """"memory", or "container limit": which of both ``available_bytes`` comes from."""


def read_machine(root: Path = ROOT) -> Machine:
    """Look at the machine; ``root`` replaces ``/`` in tests."""
    facts = _memory_facts(root)
    total, available, limited_by = facts.get("MemTotal", 0), facts.get("MemAvailable", 0), "memory"
    for limit, used in _memory_limits(root):
        total = min(total or limit, limit)
        if max(0, limit - used) < (available or UNLIMITED):
            available, limited_by = max(0, limit - used), "container limit"
    name, flags = _processor(root)
    return Machine(
        cpu_name=name,
        cpu_flags=flags,
        num_cores=_num_cores(root),
        num_sockets=max(1, len(list((root / "sys/devices/system/node").glob("node[0-9]*")))),
        total_bytes=total,
        available_bytes=available,
        limited_by=limited_by,
    )


def resident_bytes(root: Path = ROOT) -> int:
    """Memory of this process; 0 where the system does not tell."""
    fields = _text(root / "proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _memory_facts(root: Path) -> dict[str, int]:
    lines = _text(root / "proc/meminfo").splitlines()
    pairs = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, _, value in pairs}


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Per control group around this process with a limit: the limit, and what is used of it and cannot be dropped."""
    for folder in _group_folders(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and limit < UNLIMITED:
                stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if line.count(" ") == 1)
                yield limit, max(0, (_number(folder / usage_name) or 0) - int(stat.get(cache_name, 0)))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups that hold this process, innermost first; of version 1 and of version 2."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = top / controllers if controllers else top
        if controllers and not base.exists():
            base = top / controller
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(base) and folder.is_dir():
                yield folder


def _num_cores(root: Path) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def _processor(root: Path) -> tuple[str, frozenset[str]]:
    name, flags = "", frozenset[str]()
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = value.strip()
        if key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return name or "unknown processor", flags


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
