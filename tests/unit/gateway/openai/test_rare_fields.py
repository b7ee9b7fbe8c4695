"""Fields that few bodies have: they are looked for all at once, by names that must be those that are read."""

from __future__ import annotations

from typing import Any

from stratos_gateway.openai.fields import Fields
from stratos_gateway.openai.requests import read_options


class Seen(Fields):
    """A body that names nothing but its model, and notes what is read of it."""

    def __init__(self, *, claims_all: bool) -> None:
        super().__init__({"model": "base"})
        self.claims_all = claims_all
        self.looked_for, self.read = set[str](), set[str]()

    def has_any(self, names: frozenset[str]) -> bool:
        self.looked_for |= names
        return self.claims_all

    def take(self, name: str) -> Any:
        self.read.add(name)
        return super().take(name)

    def ignore(self, *names: str) -> None:
        self.read.update(names)


def test_each_field_that_is_not_always_read_is_looked_for_and_no_other() -> None:
    plain, full = Seen(claims_all=False), Seen(claims_all=True)
    made = [read_options(fields, 10, None, None) for fields in (plain, full)]
    assert full.read - plain.read == full.looked_for
    assert made[0] == made[1]
