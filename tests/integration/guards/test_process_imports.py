"""What a process imports: no torch in front of the workers, nothing of the training stack in them, no OpenTelemetry."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from stratos.rpc.forking.server import MODULES
from tests.support.paths import BASE_MODEL

TORCH_FREE = (
    "stratos_gateway.__main__",
    "stratos_router.__main__",
    "stratos_lora_registry.__main__",
    "stratos_autoscaler.__main__",
    "stratos.cli.up",
    "stratos.cli.main",
    "stratos.engine.scheduler.scheduler",
    "stratos.engine.kv_cache.block_manager",
    "stratos.engine.kv_cache.prefix_cache",
    "stratos.engine.fake.runner",
    "stratos.worker.simulated.__main__",
)
FORKED = "\n".join(f"import {module}.__main__" for module in MODULES)
"""What a fork server imports before it forks."""
WORKERS = (
    "import stratos_prefill_worker.__main__, stratos_decode_worker.__main__\n"
    "import stratos.engine.runner.torch_runner, stratos.worker.engine_client.factory"
)
LOADING = (
    "from pathlib import Path\n"
    "from stratos.engine.runner.torch_runner import TorchRunner\n"
    "from stratos.engine.settings import RunnerConfig\n"
    f"TorchRunner.load(RunnerConfig(model_path=Path({str(BASE_MODEL)!r}), kv_pool_bytes=1 << 20))"
)


def modules_after(*statements: str) -> list[set[str]]:
    """All modules after each statement of one process: what is not there after the last one is there after none.

    Threads that were begun by then are among them, as "a thread".
    """
    told = "print(json.dumps(sorted(sys.modules) + ['a thread'] * (len(os.listdir('/proc/self/task')) > 1)))"
    code = "import json, os, sys\n" + "\n".join(f"{one}\n{told}" for one in statements)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def opentelemetry_in(modules: set[str]) -> set[str]:
    """What traces need: in an extra, and imported only where a collector is configured; redis imports other parts."""
    return {name for name in modules if name.startswith(("opentelemetry.sdk.trace", "opentelemetry.exporter"))}


def test_transports_are_free_of_torch_and_grpc_and_services_and_what_forks_of_torch() -> None:
    """What is imported before a fork computes nothing and has one thread."""
    transports, *services, forked = modules_after(
        "import stratos.kv_transfer.registry", *(f"import {name}" for name in TORCH_FREE), FORKED
    )
    assert "stratos.kv_transfer.registry" in transports
    assert not transports & {"torch", "grpc"}, "until gloo is made"
    for module, modules in zip(TORCH_FREE, services, strict=True):
        assert module in modules
        assert not modules & {"torch", "transformers", "peft", "safetensors.torch"}, module
        assert not opentelemetry_in(modules), module
    assert {f"{module}.__main__" for module in MODULES} <= forked
    assert "grpc" in forked
    assert not forked & {"torch", "a thread"}


def test_workers_import_neither_transformers_nor_peft_and_load_a_model_without_heavy_machinery() -> None:
    workers, loaded = modules_after(WORKERS, LOADING)
    assert "torch" in workers, "the control: the workers do import torch"
    assert not workers & {"transformers", "peft", "accelerate", "stratos.cli", "stratos_gateway", "stratos_router"}
    assert not opentelemetry_in(workers)
    assert not loaded & {"torch._dynamo", "sympy", "transformers", "peft", "torch._inductor"}
