"""Where dependent launch is taken; that its kernels wait first is seen where they are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tests.support.reference.triton_interpreter  # noqa: F401  # before anything that imports Triton
from stratos.engine.runner.kernels import choose_kernels
from stratos.engine.triton_kernels.dependent_launch import launch_options
from tests.support.worlds.engine_settings import runner_config


def chosen(device: str, **switches: Any) -> bool:
    config = runner_config(model_path=Path(), triton_kernels=True, **switches)
    return choose_kernels(config, torch.device(device), torch.bfloat16).has_pdl


@pytest.mark.parametrize(("capability", "is_taken"), [((8, 9), False), ((9, 0), True), ((12, 0), True)])
def test_only_gpus_that_have_it_take_it_and_only_when_it_is_on(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], is_taken: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert chosen("cuda") is is_taken
    assert not chosen("cuda", dependent_launch=False)
    assert not chosen("cpu")


def test_a_plain_launch_has_no_option_of_it() -> None:
    assert launch_options(False) == {"HAS_PDL": False}
    assert launch_options(True) == {"HAS_PDL": True, "launch_pdl": True}
