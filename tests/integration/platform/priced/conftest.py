"""One running platform for all files of this folder, over the fake engine and then over the shipped model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.worlds.money_platform import MoneyPlatform, money_platform


@pytest.fixture(scope="package", params=["fake", "torch"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MoneyPlatform]:
    with money_platform(tmp_path_factory.mktemp("platform"), request.param) as running:
        yield running
