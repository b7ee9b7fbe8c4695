"""Unit tests come last, and need no platform."""

import pytest

from tests.support.worlds.shared_world import close_shared_stacks


@pytest.fixture(scope="session", autouse=True)
def _without_platforms() -> None:
    close_shared_stacks()
