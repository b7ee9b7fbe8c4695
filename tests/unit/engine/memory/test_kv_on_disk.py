"""KV that went to disk and came back in another process is the same bit for bit: tokens and log probabilities tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stratos.core.kv import KvGeometry
from stratos.engine.core import EngineCore
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.settings import DiskTierConfig
from tests.support.reference.tiny_models import save_tiny_llama
from tests.support.worlds.core_driver import Outcomes, load_runner, make_request, run
from tests.support.worlds.engine_settings import scheduler_config

PROMPTS = [[(i * 31 + 7 * k) % 97 for i in range(40 + k)] for k in range(4)]
PARAMS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.9, "num_logprobs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_llama(path)
    return path


def core_over(folder: Path, directory: Path, runner: dict[str, Any]) -> EngineCore:
    """A pool of 16 blocks, with a disk below it."""
    made = load_runner(folder, kv_pool_bytes=1 << 20, **runner)
    geometry = made.info.geometry
    block_bytes = geometry.token_bytes * geometry.block_size
    made = load_runner(folder, kv_pool_bytes=16 * block_bytes, host_pool_bytes=24 * block_bytes, **runner)
    disk = DiskTierConfig(directory=directory, max_bytes=1 << 24, max_tenant_ratio=1.0)
    return EngineCore(made, scheduler_config(swap_costs=False, kv_watermark=1.0), disk=disk)


def ask(core: EngineCore, number: int) -> Outcomes:
    request = make_request(PROMPTS[number], f"r{number}", seed=number, **PARAMS)
    request = replace(request, terms=replace(request.terms, tenant="t", kv_key=b"k" * 32))
    core.load_blocks(request.prompt_ids, request.terms)
    outcomes = run(core, request)
    assert not outcomes.errors
    assert core.disk is not None
    core.disk.write()
    return outcomes


@pytest.mark.parametrize(
    "runner",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "kv_dtype": "int8"},
     {"dtype": "float32", "native_kernels": False}],
    ids=str,
)  # fmt: skip
def test_another_process_goes_on_with_the_bits_of_the_one_before(
    folder: Path, tmp_path: Path, runner: dict[str, Any]
) -> None:
    core = core_over(folder, tmp_path, runner)
    expected = [ask(core, number).choices for number in range(4)]
    assert core.disk is not None
    core.disk.close()
    core = core_over(folder, tmp_path, runner)
    assert ask(core, 0).choices == expected[0]
    status = core.status().disk
    assert status.num_loaded == status.num_hits > 0
    assert core.disk is not None
    core.disk.close()
    other = core_over(folder, tmp_path, runner | {"dtype": "float32" if runner["dtype"] == "bfloat16" else "bfloat16"})
    assert other.status().disk.num_found == 0, "another type, another layout"


def test_what_was_read_is_what_is_used(folder: Path, tmp_path: Path) -> None:
    """Other bytes under a valid seal change the output, so it is not computed again on the quiet."""
    runner = {"dtype": "float32"}
    core = core_over(folder, tmp_path, runner)
    expected = [ask(core, number).choices for number in range(4)]
    assert core.disk is not None
    core.disk.close()
    core = core_over(folder, tmp_path, runner)
    fill = core.runner.fill_slot
    core.runner.fill_slot = lambda slot, content: fill(slot, bytes(len(content)))  # type: ignore[method-assign]
    assert ask(core, 0).choices != expected[0]


def test_equal_shapes_of_another_meaning_are_another_layout() -> None:
    geometry = KvGeometry(num_layers=1, num_kv_heads=2, head_dim=4, block_size=16, element_bytes=2)
    layouts = {
        KvPages(geometry, 1, dtype, torch.device("cpu"), key_unit).layout
        for dtype in (torch.bfloat16, torch.float16)
        for key_unit in (0, 2)
    }
    assert len(layouts) == 4
