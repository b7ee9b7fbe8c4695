"""Fields that few bodies have: they are looked for all at once, by names that must be those that are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stratos_gateway.openai import requests
from stratos_gateway.openai.fields import Fields


class Seen(Fields):
    """An empty body that notes what is read of it."""

    def __init__(self) -> None:
        super().__init__({})
        self.names = set[str]()

    def take(self, name: str) -> Any:
        self.names.add(name)
        return super().take(name)

    def ignore(self, *names: str) -> None:
        self.names.update(names)


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (lambda fields: requests.take_shared(fields, True), requests.RARELY_SHARED),
        (lambda fields: requests.take_rare(fields, 0), requests.RARE),
    ],
    ids=["shared", "rare"],
)
def test_each_of_them_is_looked_for(read: Callable[[Fields], object], names: frozenset[str]) -> None:
    fields = Seen()
    read(fields)
    assert fields.names == names
