"""Fixtures of tests against whole platforms."""

from collections.abc import Iterator

import pytest

from tests.support.platform_process import PlatformProcess, running_platform


@pytest.fixture(scope="session")
def real_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    """``stratos up`` with the shipped model and adapters; one for all tests of a worker process.

    One decode worker and no more: where a prompt is cached does not depend on what the autoscaler thinks.
    """
    with running_platform(tmp_path_factory.mktemp("platform"), "--max-decode", "1") as platform:
        yield platform
