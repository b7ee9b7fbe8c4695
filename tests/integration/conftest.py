"""Fixtures of tests against whole platforms."""

from collections.abc import Iterator

import pytest
from platform_process import PlatformProcess, running_platform


@pytest.fixture(scope="session")
def real_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """``stratos up`` with the shipped model and adapters; one for all tests of a worker process."""
    with running_platform(tmp_path_factory.mktemp("platform")) as platform:
        yield platform
