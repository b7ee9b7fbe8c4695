"""Every family through one platform: a hand-off, then a prefix hit, with the tokens of one runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratos.engine.checkpoint.model_config import SUPPORTED_ARCHITECTURES
from tests.support.reference.tiny_models import FAMILIES
from tests.support.worlds.family_models import check_added, save_served
from tests.support.worlds.platform_process import PlatformProcess, running_platform

SERVED = (
    "llama-3.1", "mistral-window", "qwen2-mixed-windows", "qwen3-mixed-windows", "mixtral", "qwen2-moe",
    "qwen3-moe-mixed", "smollm3", "granite", "gemma2", "gemma3", "phi3", "phi4-mini", "olmo2", "olmo3", "glm", "glm4",
    "glm4-moe", "gpt-oss", "deepseek-v2", "deepseek-v3", "qwen3.5",
)  # fmt: skip
SIZE = ("--engine", "torch", "--prefill", "1", "--decode", "2", "--max-decode", "2")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlatformProcess, str]]:
    """A platform of the shipped model, to which others are added, and an admin's key."""
    with running_platform(tmp_path_factory.mktemp("platform"), *SIZE) as running:
        yield running, running.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()


def test_every_architecture_has_a_case() -> None:
    assert {f"{FAMILIES[case][0]}ForCausalLM" for case in SERVED} == set(SUPPORTED_ARCHITECTURES)


@pytest.mark.slow
@pytest.mark.parametrize("case", SERVED)
def test_a_family_is_served_with_the_tokens_of_one_runner(
    platform: tuple[PlatformProcess, str], tmp_path: Path, case: str
) -> None:
    # the state that a hand-off brings is that of the prompt's end, within a block: no other prompt goes on there
    cached = {"num_cached": 0} if case == "qwen3.5" else {}
    check_added(platform[0], save_served(tmp_path / case, case), case, platform[1], num_workers=3, **cached)
