"""`stratos up` that cannot start says why in words, and a killed supervisor takes everything with it."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.support.paths import BASE_MODEL
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import gone, launch_platform, running_platform

SHIPPED = BASE_MODEL


def failing_start(data_dir: Path, *arguments: str) -> str:
    """Output of a start that must fail with exit code 1, no traceback and no process left."""
    platform = launch_platform(data_dir, *arguments)
    seen: dict[int, psutil.Process] = {}
    while platform.popen.poll() is None:
        with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
            seen |= {child.pid: child for child in platform.children()}
            platform.popen.wait(0.05)
    code = platform.stop()
    assert code == 1, platform.output
    assert "Traceback" not in platform.output, platform.output
    assert gone(list(seen.values()))
    return platform.output


def copy_model(folder: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(SHIPPED, folder)
    change(folder)
    return folder


def set_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["BertForMaskedLM"], "model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_wrong_model_path(tmp_path: Path) -> None:
    output = failing_start(tmp_path / "data", "--model", str(tmp_path / "nowhere"))
    assert "there is no such folder" in output
    assert "--model" in output


def test_weights_that_are_no_safetensors(tmp_path: Path) -> None:
    model = copy_model(tmp_path / "model", lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"))
    assert "safetensors" in failing_start(tmp_path / "data", "--model", str(model))


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    model = copy_model(tmp_path / "model", set_architecture)
    output = failing_start(tmp_path / "data", "--model", str(model))
    assert "BertForMaskedLM" in output or "bert" in output


def test_truncated_weights(tmp_path: Path) -> None:
    def truncate(folder: Path) -> None:
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(100_000)

    output = failing_start(tmp_path / "data", "--model", str(copy_model(tmp_path / "model", truncate)))
    assert "model.safetensors" in output


def test_what_a_worker_alone_finds_is_shown_with_its_name(tmp_path: Path) -> None:
    def poison(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.norm.weight"][3] = float("nan")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    model = copy_model(tmp_path / "model", poison)
    output = failing_start(tmp_path / "data", "--prefill", "0", "--model", str(model))
    assert "decode-0 could not start" in output
    assert "model.norm.weight" in output


def test_an_unusable_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = failing_start(tmp_path / "file" / "data")
    assert "data directory" in output
    assert "--data-dir" in output


def test_wrong_flags(tmp_path: Path) -> None:
    assert "--engine must be one of torch, fake" in failing_start(tmp_path / "data", "--engine", "magic")


def test_a_redis_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{silent.getsockname()[1]}/0"
        output = failing_start(tmp_path / "data", "--engine", "fake", "--redis-url", f"redis://:secret@{place}")
    assert f"the Redis at {place} does not answer; correct --redis-url" in output
    assert "secret" not in output


def test_a_killed_supervisor_takes_every_process_with_it(tmp_path: Path) -> None:
    """Interpreters of their own, whose imports take their time, are killed in the next one."""
    platform = launch_platform(tmp_path / "data", "--engine", "fake")
    platform.wait_for("Ctrl-C here")
    children = platform.children()
    assert {"valkey-server"} <= {child.name() for child in children}
    platform.popen.send_signal(signal.SIGKILL)
    platform.popen.wait(LIMIT_S)
    wait_until(lambda: gone(children), what="the end of every process")
    left_behind = platform.shm_dir()
    with running_platform(tmp_path / "data", "--engine", "fake") as again:
        assert not left_behind.exists(), "the next start sweeps what a killed one left in memory"
        assert again.api_key == platform.api_key
        assert len(list((tmp_path / "data" / "run").iterdir())) == 1


@pytest.mark.slow
def test_a_supervisor_killed_while_it_starts_takes_every_process_with_it(tmp_path: Path) -> None:
    platform = launch_platform(tmp_path / "data", "--engine", "fake", is_executed=True)
    platform.wait_for("redis ")
    children = wait_until(lambda: [c for c in platform.children() if len(platform.children()) >= 4])
    platform.popen.send_signal(signal.SIGKILL)
    platform.popen.wait(LIMIT_S)
    wait_until(lambda: gone(children), what="the end of every process")


@pytest.mark.parametrize("is_executed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ctrl_c_while_it_starts(tmp_path: Path, *, is_executed: bool) -> None:
    platform = launch_platform(tmp_path / "data", "--engine", "fake", is_executed=is_executed)
    platform.wait_for("redis ")
    children = platform.children()
    assert platform.stop(signal.SIGINT) == 0
    assert gone(children)
    assert "Traceback" not in platform.output
    assert not list((tmp_path / "data" / "run").iterdir())


@pytest.mark.slow
def test_a_platform_whose_processes_import_all_themselves_serves(tmp_path: Path) -> None:
    """As a user's do; the tests' other platforms are forks with their imports done."""
    with running_platform(tmp_path, is_executed=True) as platform:
        ask = {"model": "base", "prompt": [5, 6], "max_tokens": 3}
        headers = {"authorization": f"Bearer {platform.api_key}"}
        answer = httpx.post(f"{platform.base_url}/completions", json=ask, headers=headers, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text


def test_decode_workers_come_with_the_first_request_and_leave_when_none_comes(tmp_path: Path) -> None:
    size = ("--prefill", "0", "--decode", "0", "--max-decode", "1", "--gateways", "2", "--routers", "2")
    env = {"STRATOS_AUTOSCALER_PLANNER__IDLE_S": "1", "STRATOS_AUTOSCALER_PLANNER__COOLDOWN_DOWN_S": "1"}
    with running_platform(tmp_path, "--engine", "fake", *size, env=env) as platform:
        assert platform.status()["workers"] == []
        headers = {"authorization": f"Bearer {platform.api_key}"}
        ask = {"model": "base", "prompt": [5, 6], "max_tokens": 3}
        for _ in range(2):
            answer = httpx.post(f"{platform.base_url}/completions", json=ask, headers=headers, timeout=LIMIT_S)
            assert answer.status_code == 200, answer.text
            wait_until(lambda: platform.status()["workers"] == [], "its worker has left")
