"""Kernels of a GPU are on by default, and each one is measured without itself."""

from __future__ import annotations

import dataclasses

import pytest

from stratos.engine.switches import KernelSwitches

MODES = {"triton_kernels", "exact_kernels"}
"""Off for another reason: the device turns the first one on, and the second one trades speed for exactness."""
OF_A_CPU = {
    "native_kernels", "native_gemm", "prepacked_gemm", "whole_step", "kept_codes", "packed_keys", "native_sampler",
    "native_sinks", "sorted_adapters", "grouped_codes", "integer_tiles", "whole_step_adapters", "whole_step_experts",
    "kept_inputs", "panel_runs",
}  # fmt: skip
MEASURED_ELSEWHERE = {"grouped_lora": "adapters", "grouped_experts": "", "copy_stream": "handoff"}
"""Sections of ``scripts/gpu_check.py`` that turn them off; the shape that is measured has no experts."""


def test_every_kernel_is_on_by_default() -> None:
    assert {field.name for field in dataclasses.fields(KernelSwitches) if field.default is False} == MODES


def test_the_check_of_a_gpu_turns_each_one_off() -> None:
    variants = pytest.importorskip("scripts.gpu.steps").VARIANTS
    turned = {name for switches, _, _ in variants.values() for name in switches}
    every = {field.name for field in dataclasses.fields(KernelSwitches)}
    assert every - MODES - OF_A_CPU - set(MEASURED_ELSEWHERE) == turned
