"""One running platform for all files of this folder, over the fake engine and, marked slow, over the shipped model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.worlds.money_platform import MoneyPlatform, money_platform


@pytest.fixture(scope="package", params=["fake", pytest.param("torch", marks=pytest.mark.slow)])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MoneyPlatform]:
    """Money is made by gateways, router and the worker around its engine, which are the same over both."""
    with money_platform(tmp_path_factory.mktemp("platform"), request.param) as running:
        yield running
