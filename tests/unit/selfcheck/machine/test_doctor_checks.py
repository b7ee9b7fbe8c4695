"""Every check of `stratos doctor`, in a case in which it finds nothing and in each in which it finds something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratos.engine.native.isa import INSTRUCTION_SETS
from stratos.engine.settings import RunnerConfig, SchedulerConfig
from stratos.engine.sizing.machine import Machine
from stratos.engine.sizing.plan import EnginePlan
from stratos.kv_transfer.settings import StagingConfig
from stratos.selfcheck.findings import Finding, Level, report
from stratos.selfcheck.machine import checks
from stratos.selfcheck.machine.checks import PlannedFleet
from stratos.selfcheck.machine.environment import GpuFacts, RedisFacts, free_shm_bytes, newest_change_s, read_gpus

AMX = frozenset(INSTRUCTION_SETS[0].cpu_flags)
MACHINE = Machine(
    cpu_name="Test CPU", cpu_flags=AMX, num_cores=2, num_sockets=1, total_bytes=8 << 30, available_bytes=6 << 30,
    limited_by="memory",
)  # fmt: skip
FLEET = PlannedFleet(num_workers=2, threads=1)
ON_GPU = PlannedFleet(num_workers=1, threads=1, device="cuda")
GPUS = GpuFacts(num_devices=1, driver="NVRM version: 580")
PLAN = EnginePlan(dtype="float32", kv_pool_bytes=1 << 28, host_pool_bytes=0, max_model_len=4096, choices=())
REDIS = RedisFacts(version="7.2", eviction="noeviction")
RUNNER, SCHEDULER = RunnerConfig(), SchedulerConfig()


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.level.value for finding in findings}


@pytest.mark.parametrize(
    ("built", "flags", "level", "said"),
    [
        (("amx", "avx512-bf16"), AMX, Level.OK, "kernels amx"),
        (("avx512-bf16",), AMX, Level.WARN, "without the processor's tiles"),
        ((), AMX, Level.WARN, "not built"),
        ((), frozenset(("asimd",)), Level.WARN, "ARM"),
        ((), frozenset(("sse2",)), Level.WARN, "no instruction set"),
    ],
)
def test_processor(tmp_path: Path, built: tuple[str, ...], flags: frozenset[str], level: Level, said: str) -> None:
    for name in built:
        (tmp_path / f"kernels-{name}.so").touch()
    found = checks.check_processor(replace(MACHINE, cpu_flags=flags), RUNNER, tmp_path)
    assert found.level is level
    assert said in found.text


def test_compiler() -> None:
    assert checks.check_compiler("/usr/bin/g++", has_kernels=False).level is Level.OK
    assert checks.check_compiler(None, has_kernels=True).level is Level.OK
    assert checks.check_compiler(None, has_kernels=False).level is Level.FAIL
    assert checks.check_compiler(None, has_kernels=True, device="cuda").level is Level.FAIL


@pytest.mark.parametrize(
    ("gpus", "fleet", "level", "said"),
    [
        (GpuFacts(num_devices=0, driver=""), FLEET, Level.OK, "no GPU"),
        (GPUS, FLEET, Level.WARN, "not used"),
        (GPUS, ON_GPU, Level.OK, "NVRM"),
        (GpuFacts(num_devices=1, driver=""), ON_GPU, Level.FAIL, "no driver"),
        (GpuFacts(num_devices=0, driver="NVRM"), ON_GPU, Level.FAIL, "no device node"),
        (GPUS, replace(ON_GPU, num_workers=2), Level.OK, "2 workers share one GPU of 1"),
    ],
)
def test_drivers(gpus: GpuFacts, fleet: PlannedFleet, level: Level, said: str) -> None:
    found = checks.check_drivers(gpus, fleet)
    assert found.level is level
    assert said in found.text


def test_gpus_are_seen_by_their_nodes_and_driver(tmp_path: Path) -> None:
    assert read_gpus(tmp_path) == GpuFacts(num_devices=0, driver="")
    for name, text in (("dev/nvidia0", ""), ("dev/nvidiactl", ""), ("proc/driver/nvidia/version", "NVRM 580\nGCC\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert read_gpus(tmp_path) == GpuFacts(num_devices=1, driver="NVRM 580")


def test_memory() -> None:
    assert checks.check_memory(MACHINE, PLAN, FLEET).level is Level.OK
    assert checks.check_memory(replace(MACHINE, available_bytes=1 << 28), PLAN, FLEET).level is Level.WARN
    refused = checks.check_memory(MACHINE, "the model does not fit", FLEET)
    assert (refused.level, refused.text) == (Level.FAIL, "the model does not fit")
    assert "KV pool" not in checks.check_memory(MACHINE, PLAN, ON_GPU).text


def test_shm(tmp_path: Path) -> None:
    staging = StagingConfig(slot_bytes=1 << 20, slots_per_pair=16)
    assert checks.check_shm(16 << 20, tmp_path, staging, 1).level is Level.OK
    small = checks.check_shm(16 << 20, tmp_path, staging, 5)
    assert (small.level, "80.0 MiB for the rings of 5 sources" in small.text) == (Level.FAIL, True)
    assert checks.check_shm(None, tmp_path, staging, 1).level is Level.FAIL
    assert (free_shm_bytes(tmp_path / "not" / "there") or 0) > 0
    (tmp_path / "file").touch()
    assert free_shm_bytes(tmp_path / "file" / "below") is None


@pytest.mark.parametrize(
    ("port", "problem", "level"),
    [
        (8000, "", Level.OK),
        (8000, "Address already in use", Level.WARN),
        (80, "Permission denied", Level.FAIL),
        (8000, "Cannot assign requested address", Level.FAIL),
    ],
)
def test_ports(port: int, problem: str, level: Level) -> None:
    assert checks.check_port("127.0.0.1", port, problem).level is level


def test_redis() -> None:
    assert checks.check_redis(None).level is Level.OK
    assert checks.check_redis(REDIS).level is Level.OK
    assert checks.check_redis(replace(REDIS, eviction="")).level is Level.OK
    dropping = checks.check_redis(replace(REDIS, eviction="allkeys-lru"))
    assert (dropping.level, "noeviction" in dropping.advice) == (Level.FAIL, True)
    assert checks.check_redis(RedisFacts(problem="no answer")).level is Level.FAIL


def test_object_store() -> None:
    assert checks.check_object_store("file:///x", "").level is Level.OK
    assert checks.check_object_store("s3://b/p", "no such bucket").level is Level.FAIL


def test_clock(tmp_path: Path) -> None:
    (tmp_path / "module.py").touch()
    installed = newest_change_s(tmp_path)
    assert checks.check_clock(installed + 5, installed, None).level is Level.OK
    assert checks.check_clock(installed - 86400, installed, None).level is Level.FAIL
    for skew, level in ((0.1, Level.OK), (-3.0, Level.WARN), (100.0, Level.FAIL)):
        assert checks.check_clock(installed + 5, installed, replace(REDIS, skew_s=skew)).level is level


def test_certificates(tmp_path: Path) -> None:
    assert levels(checks.check_certificates(None, [])) == {"certificates": "ok"}
    assert levels(checks.check_certificates(tmp_path, [])) == {"certificates": "fail"}
    both = checks.check_certificates(tmp_path, [("in order", ""), ("", "expires soon")])
    assert [finding.level for finding in both] == [Level.OK, Level.FAIL]


def test_the_classic_mistakes_are_named() -> None:
    assert levels(checks.check_settings(MACHINE, FLEET, RUNNER, SCHEDULER)) == {"settings": "ok"}
    crowded = checks.check_settings(MACHINE, replace(FLEET, num_workers=4), RUNNER, SCHEDULER)
    assert levels(crowded) == {"cores": "fail"}
    assert "4 workers with 1 threads on 2 cores" in crowded[0].text
    wide = SchedulerConfig(max_num_batched_tokens=32768)
    assert levels(checks.check_settings(MACHINE, FLEET, RUNNER, wide)) == {"token budget": "fail"}
    greedy = RunnerConfig(gpu_memory_utilization=0.95)
    assert levels(checks.check_settings(MACHINE, ON_GPU, greedy, wide)) == {
        "token budget": "fail", "utilisation": "fail",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("model_len", "asked", "plan", "level", "said"),
    [
        (4096, 0, PLAN, Level.OK, "at most 4,096"),
        (131072, 0, PLAN, Level.WARN, "the pool holds 4,096 of the model's 131,072"),
        (131072, 0, replace(PLAN, max_model_len=131072), Level.WARN, "may take the KV of 131,072"),
        (131072, 4096, PLAN, Level.OK, "at most 4,096"),
        (131072, 0, "does not fit", Level.WARN, "the model's context is 131,072"),
    ],
)
def test_no_maximum_length(model_len: int, asked: int, plan: EnginePlan | str, level: Level, said: str) -> None:
    found = checks.check_length(model_len, RunnerConfig(max_model_len=asked), plan)
    assert found.level is level
    assert said in found.text


def test_the_report_counts_and_shows_the_advice() -> None:
    text = report([Finding("a", Level.OK, "fine"), Finding("bb", Level.FAIL, "wrong", "do this")])
    assert text.splitlines() == [
        "ok    a   fine", "fail  bb  wrong", "          -> do this", "1 in order, 0 to look at, 1 to repair",
    ]  # fmt: skip
