"""Gemma 3, with a window in some layers alone, beside the shipped Llama; every other family is in the slow tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.worlds.family_models import check_added, save_served
from tests.support.worlds.platform_process import PlatformProcess


def test_a_model_that_mixes_windows_is_served_with_the_tokens_of_one_runner(
    real_platform: PlatformProcess, tmp_path: Path
) -> None:
    admin_key = real_platform.stratos("keys", "create", "--tenant", "platform", "--role", "admin").stdout.strip()
    check_added(real_platform, save_served(tmp_path / "gemma3", "gemma3"), "gemma3", admin_key, num_workers=2)
