"""Kernels that are off until a GPU has measured them are rows of one table, and each one is measured."""

from __future__ import annotations

import dataclasses

import pytest

from scripts.gpu_check import SECTIONS
from stratos.engine.candidates import GPU_CANDIDATES, GpuCandidate
from stratos.engine.switches import KernelSwitches
from tests.support.paths import ROOT

MODES = {"triton_kernels", "exact_kernels"}
"""Off for another reason: the device turns the first one on, and the second one trades speed for exactness."""


def test_every_kernel_that_is_off_by_default_is_a_candidate() -> None:
    off = {field.name for field in dataclasses.fields(KernelSwitches) if field.default is False}
    assert off - MODES == {candidate.switch for candidate in GPU_CANDIDATES}


@pytest.mark.parametrize("candidate", GPU_CANDIDATES, ids=lambda candidate: candidate.switch)
def test_a_candidate_is_measured_and_its_code_exists(candidate: GpuCandidate) -> None:
    variants = pytest.importorskip("scripts.gpu.steps").VARIANTS
    assert set(candidate.sections) <= set(SECTIONS)
    assert variants[f"{candidate.switch}_on"][0] == {candidate.switch: True}
    for name in candidate.code:
        assert (ROOT / "libs" / "stratos" / "engine" / name).is_file(), name
