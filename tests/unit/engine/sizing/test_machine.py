"""What a machine tells of itself, within the limits of a container; from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratos.engine.sizing.machine import read_machine
from stratos.engine.sizing.report import machine_line

MEMINFO = "MemTotal:       16384000 kB\nMemFree:  100 kB\nMemAvailable:    8192000 kB\nHugePages_Total:  0\n"
CPUINFO = "processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
KIB = 1024


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path, {"proc/meminfo": MEMINFO, "proc/cpuinfo": CPUINFO, "proc/self/cgroup": "0::/\n"})


def test_without_limits_the_machine_counts(root: Path) -> None:
    machine = read_machine(root)
    assert (machine.total_bytes, machine.available_bytes) == (16384000 * KIB, 8192000 * KIB)
    assert machine.limited_by == "memory"
    assert machine.cpu_name == "Test CPU"
    assert "amx_bf16" in machine.cpu_flags
    assert "Test CPU, AMX" in machine_line(machine)


def test_a_container_limit_counts_less_what_is_used_and_cannot_be_dropped(root: Path) -> None:
    write(root, {
        "sys/fs/cgroup/memory.max": "1000000000\n", "sys/fs/cgroup/memory.current": "700000000\n",
        "sys/fs/cgroup/memory.stat": "anon 100\ninactive_file 500000000\n",
    })  # fmt: skip
    machine = read_machine(root)
    assert (machine.total_bytes, machine.available_bytes) == (1_000_000_000, 800_000_000)
    assert machine.limited_by == "container limit"


def test_the_tightest_group_around_the_process_counts(root: Path) -> None:
    write(root, {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/memory.max": "2000000\n", "sys/fs/cgroup/pod/memory.current": "500000\n",
        "sys/fs/cgroup/pod/container/memory.max": "max\n", "sys/fs/cgroup/pod/container/memory.current": "1\n",
        "sys/fs/cgroup/other/memory.max": "1\n",
    })  # fmt: skip
    assert read_machine(root).available_bytes == 1_500_000


def test_groups_of_version_1_are_read_too(root: Path) -> None:
    write(root, {
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3000000\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    machine = read_machine(root)
    assert (machine.available_bytes, machine.num_cores) == (2_000_000, 1)


def test_a_quota_of_cpu_time_counts_as_cores(root: Path) -> None:
    before = read_machine(root).num_cores
    write(root, {"sys/fs/cgroup/cpu.max": "100000 100000\n"})
    assert read_machine(root).num_cores == 1
    write(root, {"sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert read_machine(root).num_cores == before


def test_a_system_that_tells_nothing_limits_nothing(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert (machine.total_bytes, machine.available_bytes, machine.num_sockets) == (0, 0, 1)
