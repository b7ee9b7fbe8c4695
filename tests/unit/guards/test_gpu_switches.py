"""Kernels of a GPU are on by default, each one is measured without itself, and all of their tests are run there."""

from __future__ import annotations

import dataclasses
import runpy

import pytest
import torch

from stratos.engine.switches import KernelSwitches
from tests.support.paths import ROOT

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


def test_the_check_of_a_gpu_runs_every_test_that_takes_one() -> None:
    suites = pytest.importorskip("scripts.gpu.suites")
    asked = {part for selection in suites.SUITES.values() for part in selection if part.endswith(".py")}
    units = [path for room in (suites.KERNEL_UNITS, suites.RUNNER_UNITS) for path in (ROOT / room).glob("test_*.py")]
    taking = [path for path in units if "import DEVICE" in path.read_text(encoding="utf-8")]
    every = {str(path.relative_to(ROOT)) for path in (*taking, *(ROOT / "tests" / "gpu").glob("test_*.py"))}
    assert every - asked == set()


def test_kernels_are_interpreted_by_what_torch_can_use_and_not_by_a_device_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = runpy.run_path(str(ROOT / "tests" / "support" / "reference" / "triton_interpreter.py"))
    assert (found["IS_INTERPRETED"], found["DEVICE"]) == (False, "cuda")
