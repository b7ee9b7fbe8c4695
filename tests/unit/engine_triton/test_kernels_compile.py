"""Every kernel compiles for sm_90 and fits into a Hopper multiprocessor; needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHARED_BYTES = 227 * 1024
KERNELS = {
    "_attention_kernel",
    "_mask_kernel",
    "_merge_kernel",
    "_penalty_kernel",
    "_rms_norm_kernel",
    "_rope_kv_kernel",
    "_sample_kernel",
    "_silu_mul_kernel",
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_of_them_compile(kernels: dict[str, list[dict[str, Any]]]) -> None:
    assert set(kernels) == KERNELS
    assert all(variant["shared"] <= SHARED_BYTES for variants in kernels.values() for variant in variants)


def test_attention_uses_the_hardware(kernels: dict[str, list[dict[str, Any]]]) -> None:
    variants = kernels["_attention_kernel"]
    assert [variant["warp_group_products"] > 0 for variant in variants] == [False, True, False, True]
    assert all(variant["async_copies"] > 0 for variant in variants)
