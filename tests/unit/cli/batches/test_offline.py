"""`stratos batch run`: what it hands to the driver."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.batches.commands import batch_app
from stratos.common.errors import BadRequest
from stratos_offline.options import JobOptions
from tests.support.paths import BASE_MODEL


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *args: found.append(args))
    return found


def run(*args: str) -> tuple[int, str]:
    found = CliRunner().invoke(batch_app, ["run", "in.jsonl", "--out", "out", *args])
    return found.exit_code, found.output


def test_the_driver_understands_every_option(started: list[Any]) -> None:
    flags = ["--ray", "head:6379", "--model", f"mine={BASE_MODEL}", "--engines", "4", "--min-engines", "2"]
    assert run(*flags, "--kv-pool", "64", "--threads", "2", "--object-store", "s3://b/p")[0] == 0
    [(_, argv, env)] = started
    assert argv[1:3] == ["-m", "stratos_offline"]
    options = JobOptions.parse(argv[3], salt="ab")
    assert (options.ray, options.max_engines, options.min_engines) == ("head:6379", 4, 2)
    assert (options.engine.served_name, options.engine.kv_pool_bytes) == ("mine", 64 << 20)
    assert (options.engine.threads, env["OMP_NUM_THREADS"]) == (2, "2")
    assert options.store("j" * 40).url == f"s3://b/p/offline-{'j' * 16}"
    assert "salt" not in json.loads(argv[3])


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--engine", "gpu"], "--engine must be one of"),
        (["--device", "tpu"], "--device must be one of"),
        (["--model", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(started: list[Any], flags: list[str], text: str) -> None:
    code, output = run(*flags)
    assert (code, started) == (1, [])
    assert text in output


@pytest.mark.parametrize("text", ["[]", "{}", '{"file": 1, "color": 2}', "no json"])
def test_the_driver_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(BadRequest):
        JobOptions.parse(text)


def test_the_parser_is_told_of_a_file_that_is_not_given() -> None:
    assert CliRunner().invoke(batch_app, ["run", "--out", str(Path("out"))]).exit_code == 2


@pytest.mark.parametrize(
    ("flags", "address"),
    [(["--ray"], "local"), (["--ray", "--engines", "2"], "local"), (["--ray", "auto"], "auto"), ([], "")],
)
def test_ray_without_an_address_is_a_cluster_of_this_machine(
    started: list[Any], flags: list[str], address: str
) -> None:
    assert run(*flags, "--max-input-tokens", "9000")[0] == 0
    options = JobOptions.parse(started[0][1][3])
    assert (options.ray, options.engine.max_input_tokens) == (address, 9000)
    assert run("--model", str(BASE_MODEL), *flags)[0] == 0
    assert JobOptions.parse(started[1][1][3]).ray == address
