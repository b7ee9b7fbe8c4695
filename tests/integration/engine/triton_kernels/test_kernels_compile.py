"""Every kernel compiles for sm_90 as an 8B model uses it, attention for other GPUs and heads, too; needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from typing import Any

import pytest

from tests.support.servers.module_command import module_command

pytestmark = pytest.mark.timeout(600)  # 30 s of CPU in one fixture, however busy the machine is
SHARED_BYTES = 227 * 1024
REGISTERS, THREADS = 65536, 128
OTHER_SHARED_BYTES = {80: 163 * 1024, 89: 99 * 1024, 90: SHARED_BYTES, 120: 99 * 1024}
"""Of one program, by compute capability: A100, L4 and RTX 4090, H100, RTX 5090."""
NUM_CODES = {"_codes_kernel": 16, "_byte_codes_kernel": 4, "_cut_rows_kernel": 2, "_expert_codes_kernel": 6}
"""Products of codes: eight kinds of weights, two of bytes, three of experts, for few rows and many."""
PAGES = ("bf16", "fp16", "fp8")
SPILLED_BYTES = 8
"""Two registers, around the loop: the price of a fourth program on a multiprocessor for decode over fp8 pages."""
ATTENTION_KERNELS = {"_attention_kernel", "exact_merge_kernel", "merge_items_kernel", "merge_kernel", "_rope_kv_kernel"}
KERNELS = ATTENTION_KERNELS | {
    "_choose_kernel",
    "_decode_inputs_kernel",
    "_expand_kernel",
    "_experts_kernel",
    "_levels_kernel",
    "_joined_kernel",
    "_kv_copy_kernel",
    "_linear_kernel",
    "_mask_kernel",
    "_penalty_kernel",
    "_products_kernel",
    "_reach_kernel",
    "_rms_norm_kernel",
    "_shrink_kernel",
    "_sample_kernel",
    "_silu_mul_kernel",
    "_tops_kernel",
}


EARLY_KERNELS = {
    "_attention_kernel",
    "_joined_kernel",
    "_products_kernel",
    "_rms_norm_kernel",
    "_rope_kv_kernel",
    "_silu_mul_kernel",
    "merge_items_kernel",
    "merge_kernel",
}
"""Those of a decode layer, by programmatic dependent launch."""


def _plain_attention(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [kernel for kernel in kernels if kernel["kernel"] == "_attention_kernel" and not kernel["launch_pdl"]]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in PAGES])
def config(request: pytest.FixtureRequest) -> str:
    """What the pages hold; each takes half a minute. What kernels compute is tested by the interpreter in every run."""
    return request.param


@pytest.fixture(scope="module")
def kernels(pytestconfig: pytest.Config, config: str) -> list[dict[str, Any]]:
    return compiled_kernels(pytestconfig, config)


def compiled_kernels(pytestconfig: pytest.Config, config: str) -> list[dict[str, Any]]:
    # Triton names what it compiled by sources and compiler, so what an earlier run left is as good as compiling again.
    environment = {**os.environ, "TRITON_CACHE_DIR": str(pytestconfig.cache.mkdir("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    command = (*module_command("tests.support.reference.compile_kernels"), config)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_of_them_compile_without_spilling_registers(kernels: list[dict[str, Any]], config: str) -> None:
    assert {kernel["kernel"] for kernel in kernels} == (KERNELS if config == "bf16" else ATTENTION_KERNELS)
    assert max(kernel["shared"] for kernel in kernels) <= SHARED_BYTES
    assert [kernel for kernel in kernels if kernel["spilled_bytes"] > SPILLED_BYTES] == []


def test_a_kernel_launched_early_waits_before_its_first_access_to_memory(
    kernels: list[dict[str, Any]], config: str
) -> None:
    early = {kernel["kernel"] for kernel in kernels if kernel["launch_pdl"]}
    assert early == (EARLY_KERNELS if config == "bf16" else set())
    controls = ["griddepcontrol.wait", "griddepcontrol.launch_dependents", "access"]
    for kernel in kernels:
        assert kernel["grid_controls"] == (controls if kernel["launch_pdl"] else ["access"] * 3), kernel["kernel"]


def test_attention_uses_the_hardware(kernels: list[dict[str, Any]]) -> None:
    variants = _plain_attention(kernels)
    assert [variant["warp_group_products"] > 0 for variant in variants] == [False, False, False, True, True]
    assert all(variant["async_copies"] > 0 for variant in variants)


def test_copies_of_kv_move_sixteen_bytes_at_a_time(kernels: list[dict[str, Any]], config: str) -> None:
    if config != "bf16":
        pytest.skip("they see words, not numbers")
    variants = [kernel for kernel in kernels if kernel["kernel"] == "_kv_copy_kernel"]
    assert len(variants) == 4
    assert all(min(variant["wide_accesses"]) >= 4 for variant in variants)


def test_enough_decode_programs_fit_on_a_multiprocessor(kernels: list[dict[str, Any]], config: str) -> None:
    if config != "bf16":
        pytest.skip("a bound for bf16 pages")
    balanced, split, whole = _plain_attention(kernels)[:3]
    for kernel in (balanced, split, whole):
        assert min(REGISTERS // (kernel["registers"] * THREADS), SHARED_BYTES // kernel["shared"]) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("capability", sorted(OTHER_SHARED_BYTES))
def test_attention_fits_into_other_gpus_with_the_heads_of_other_models(
    pytestconfig: pytest.Config, capability: int
) -> None:
    found = [kernel for kernel in compiled_kernels(pytestconfig, str(capability)) if "attention" in kernel["kernel"]]
    assert len(found) >= 10  # four kinds of heads: decode, prompt; two of them exact
    assert max(kernel["shared"] for kernel in found) <= OTHER_SHARED_BYTES[capability]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_products_of_codes_compile_for_every_gpu(pytestconfig: pytest.Config, capability: int) -> None:
    found = compiled_kernels(pytestconfig, f"codes-{capability}")
    assert Counter(kernel["kernel"] for kernel in found) == NUM_CODES
    assert max(kernel["spilled_bytes"] for kernel in found) <= SPILLED_BYTES
    assert max(kernel["shared"] for kernel in found) <= OTHER_SHARED_BYTES[capability]
    products = [kernel for kernel in found if kernel["kernel"] != "_cut_rows_kernel"]
    assert all(kernel["warp_group_products"] > 0 for kernel in products) == (capability == 90)
