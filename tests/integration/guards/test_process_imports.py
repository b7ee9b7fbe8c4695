"""What a process imports: no torch in front of the workers, nothing of the training stack in them, no OpenTelemetry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_models import save_tiny_llama

TORCH_FREE = {
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
}


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def opentelemetry_in(modules: set[str]) -> set[str]:
    """What traces need: in an extra, and imported only where a collector is configured; redis imports other parts."""
    return {name for name in modules if name.startswith(("opentelemetry.sdk.trace", "opentelemetry.exporter"))}


@pytest.mark.parametrize("module", sorted(TORCH_FREE))
def test_is_free_of_torch(module: str) -> None:
    modules = modules_after(f"import {module}")
    assert module in modules
    assert not modules & {"torch", "transformers", "peft", "safetensors.torch"}
    assert not opentelemetry_in(modules)


def test_workers_import_neither_transformers_nor_peft() -> None:
    modules = modules_after(
        "import stratos_prefill_worker.__main__, stratos_decode_worker.__main__\n"
        "import stratos.engine.runner.torch_runner, stratos.worker.engine_client.factory"
    )
    assert "torch" in modules, "the control: the workers do import torch"
    assert not modules & {"transformers", "peft", "accelerate", "stratos.cli", "stratos_gateway", "stratos_router"}
    assert not opentelemetry_in(modules)


def test_transports_import_no_torch_and_no_grpc_until_gloo_is_made() -> None:
    modules = modules_after("import stratos.kv.registry")
    assert "stratos.kv.registry" in modules
    assert not modules & {"torch", "grpc"}


def test_loading_a_model_imports_no_heavy_machinery(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    modules = modules_after(
        "from pathlib import Path\n"
        "from stratos.engine.runner.torch_runner import TorchRunner\n"
        "from stratos.engine.settings import RunnerConfig\n"
        f"TorchRunner.load(RunnerConfig(model_path=Path({str(tmp_path)!r}), kv_pool_bytes=1 << 20))"
    )
    assert "torch" in modules
    assert not modules & {"torch._dynamo", "sympy", "transformers", "peft", "torch._inductor"}
