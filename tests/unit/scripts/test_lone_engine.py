"""The engine beside a platform has the settings of that platform's worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.lone_engine import Load, run, worker_environment
from stratos.cli.local.options import UpOptions
from stratos.engine.core import EngineCore
from stratos.engine.fake.runner import FakeConfig, FakeRunner
from stratos.engine.settings import SchedulerConfig
from stratos.rpc.settings import load_settings
from stratos_decode_worker.settings import DecodeWorkerSettings


def test_its_environment_is_that_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = UpOptions(model_path=tmp_path, prefill=0, threads=3, dtype="bfloat16")
    for name, content in worker_environment(options, tmp_path).items():
        monkeypatch.setenv(name, content)
    settings = load_settings(DecodeWorkerSettings)
    assert (settings.runner.num_threads, settings.runner.dtype) == (3, "bfloat16")
    assert settings.steps == SchedulerConfig().for_device("cpu")


def test_every_request_is_answered_in_full() -> None:
    engine = EngineCore(FakeRunner(FakeConfig()), SchedulerConfig())
    load = Load(streams=2, requests=5, prompt_tokens=8, output_tokens=4, vocab_size=100, seed=1)
    assert run(engine, load)["output_tokens_per_s"] > 0
    assert engine.status().num_running == engine.status().num_waiting == 0
