"""`stratos doctor` against a Redis, folders, ports and certificates that are there, and that are not."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.pki.local import make_certificates
from stratos.selfcheck.machine import environment
from stratos.selfcheck.machine.environment import object_store_problem, port_problem, read_redis
from stratos.store.object_store import MAX_FOLDER_FILES
from stratos.store.settings import ObjectStoreConfig


def run(*arguments: str) -> tuple[int, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, {finding["check"]: finding["level"] for finding in json.loads(result.output)}


def test_a_machine_in_order(tmp_path: Path, redis_url: str) -> None:
    make_certificates(tmp_path / "tls")
    (tmp_path / "store").mkdir()
    code, found = run(
        "--prefill", "0", "--port", "0", "--redis-url", redis_url, "--object-store", f"file://{tmp_path}/store",
        "--certificates", str(tmp_path / "tls"), "--domain", "local",
    )  # fmt: skip
    assert code == 0, {check for check, level in found.items() if level == "fail"}
    assert set(found) == {
        "processor", "compiler", "drivers", "settings", "memory", "length", "shm", "ports", "redis", "object store",
        "clock", "certificates",
    }  # fmt: skip
    assert "fail" not in found.values()


def test_a_machine_with_everything_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "tls.crt").write_text("no certificate")
    monkeypatch.setenv("STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_BATCHED_TOKENS", "32768")
    monkeypatch.setenv("STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES", str(1 << 50))
    code, found = run(
        "--decode", "500", "--host", "192.0.2.1", "--redis-url", "redis://127.0.0.1:1/0",
        "--object-store", f"file://{tmp_path}/file/store", "--certificates", str(tmp_path / "tls"),
    )  # fmt: skip
    assert code == 1
    wrong = {"memory", "cores", "token budget", "ports", "redis", "object store", "certificates"}
    assert wrong <= {check for check, level in found.items() if level == "fail"}


def test_workers_share_a_gpu_and_plan_its_memory_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "read_gpus", lambda: environment.GpuFacts(num_devices=1, driver="NVRM"))
    monkeypatch.setenv("STRATOS_DECODE_WORKER_RUNNER__KV_POOL_BYTES", str(1 << 50))
    _, found = run("--device", "cuda", "--prefill", "1", "--decode", "2", "--port", "0")
    assert found["drivers"] == "ok"
    assert found["memory"] != "fail"


async def test_what_is_asked_says_why_it_does_not_answer(tmp_path: Path) -> None:
    assert "does not answer" in (await read_redis("redis://127.0.0.1:1/0")).problem
    assert await object_store_problem(ObjectStoreConfig(url=f"file://{tmp_path}")) == ""
    (tmp_path / "models").mkdir()
    for number in range(MAX_FOLDER_FILES + 1):
        (tmp_path / "models" / f"{number}").touch()
    assert await object_store_problem(ObjectStoreConfig(url=f"file://{tmp_path}")) == "", "however many models it has"
    assert "must be file" in await object_store_problem(ObjectStoreConfig(url="ftp://x"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in port_problem("127.0.0.1", taken.getsockname()[1])
