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

import boto3
import psutil
import pytest
from moto.server import ThreadedMotoServer

from tests.support.paths import BASE_MODEL
from tests.support.platform_process import gone, launch_platform, running_platform
from tests.support.waiting import wait_until

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
    assert "could not start" in output
    assert "BertForMaskedLM" in output or "bert" in output


def test_truncated_weights(tmp_path: Path) -> None:
    def truncate(folder: Path) -> None:
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(100_000)

    output = failing_start(tmp_path / "data", "--model", str(copy_model(tmp_path / "model", truncate)))
    assert "could not start" in output
    assert "model.safetensors" in output


def test_an_unusable_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = failing_start(tmp_path / "file" / "data")
    assert "data directory" in output
    assert "--data-dir" in output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--decode", "0"), "--decode must be between 1 and 16"),
        (("--max-decode", "1", "--decode", "2"), "--max-decode"),
        (("--engine", "magic"), "--engine must be one of torch, fake"),
        (("--object-store", "ftp://x"), "--object-store must be"),
    ],
)
def test_wrong_flags(tmp_path: Path, arguments: tuple[str, ...], hint: str) -> None:
    assert hint in failing_start(tmp_path / "data", *arguments)


def test_a_redis_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{silent.getsockname()[1]}/0"
        output = failing_start(tmp_path / "data", "--engine", "fake", "--redis-url", f"redis://:secret@{place}")
    assert f"the Redis at {place} does not answer; correct --redis-url" in output
    assert "secret" not in output


def test_an_external_redis_is_used_and_stays(tmp_path: Path, redis_url: str) -> None:
    with running_platform(tmp_path / "data", "--engine", "fake", "--redis-url", redis_url) as platform:
        assert "redis" not in platform.processes()
        assert platform.facts()["redis_url"] == redis_url
        assert platform.api_key.split("-")[1] in platform.stratos("keys", "list").stdout


def test_adapters_go_to_an_s3_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=endpoint)
        client.create_bucket(Bucket="bucket")
        flags = ("--engine", "fake", "--object-store", "s3://bucket/prefix", "--s3-endpoint", endpoint)
        with running_platform(tmp_path / "data", *flags) as platform:
            adapter = str(SHIPPED.parent / "adapters" / "c-headers")
            assert (
                "rank 8" in platform.stratos("adapters", "register", "headers", adapter, "--tenant", "default").stdout
            )
            assert "headers" in platform.stratos("adapters", "list", "--tenant", "default").stdout
            assert "headers" not in platform.stratos("adapters", "list", "--tenant", "other").stdout
            keys = [item["Key"] for item in client.list_objects_v2(Bucket="bucket")["Contents"]]
            assert {key.split("/")[0] for key in keys} == {"prefix"}
            names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
            assert {key.rsplit("/")[-1] for key in keys} == names
            platform.stratos("adapters", "delete", "headers", "--tenant", "default")
            assert "headers" not in platform.stratos("adapters", "list", "--tenant", "default").stdout
        client.close()
    finally:
        server.stop()


def test_a_killed_supervisor_takes_every_process_with_it(tmp_path: Path) -> None:
    platform = launch_platform(tmp_path / "data", "--engine", "fake")
    platform.wait_for("Ctrl-C here", 60)
    children = platform.children()
    assert {"valkey-server"} <= {child.name() for child in children}
    platform.popen.send_signal(signal.SIGKILL)
    platform.popen.wait(10)
    wait_until(lambda: gone(children), what="the end of every process")
    left_behind = platform.shm_dir()
    with running_platform(tmp_path / "data", "--engine", "fake") as again:
        assert not left_behind.exists(), "the next start sweeps what a killed one left in memory"
        assert again.api_key == platform.api_key
        assert len(list((tmp_path / "data" / "run").iterdir())) == 1


def test_a_supervisor_killed_while_it_starts_takes_every_process_with_it(tmp_path: Path) -> None:
    platform = launch_platform(tmp_path / "data", "--engine", "fake")
    platform.wait_for("redis ", 60)
    children = wait_until(lambda: [c for c in platform.children() if len(platform.children()) >= 4])
    platform.popen.send_signal(signal.SIGKILL)
    platform.popen.wait(10)
    wait_until(lambda: gone(children), what="the end of every process")


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    platform = launch_platform(tmp_path / "data", "--engine", "fake")
    platform.wait_for("redis ", 60)
    children = platform.children()
    assert platform.stop(signal.SIGINT) == 0
    assert gone(children)
    assert "Traceback" not in platform.output
    assert not list((tmp_path / "data" / "run").iterdir())
