"""Records are dataclasses for all that reads them, and nothing slower than an assignment for what makes them."""

from __future__ import annotations

import dataclasses
import dis
from types import FunctionType
from typing import cast

import pytest

from stratos.common.changed import changed, record
from stratos.core.placement import PlacementRequest
from stratos.core.requests.sampling_params import SamplingParams


@record(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0


def test_records_are_equal_and_hash_by_their_fields() -> None:
    assert Point(x=1) == Point(x=1, y=0) != Point(x=2)
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2
    assert dataclasses.replace(Point(x=1), y=5) == Point(x=1, y=5)
    assert not hasattr(Point(x=1), "__dict__")


@pytest.mark.parametrize("kind", [Point, PlacementRequest, SamplingParams])
def test_making_one_calls_nothing_for_its_fields(kind: type) -> None:
    init = cast("FunctionType", vars(kind)["__init__"])
    stores = [step for step in dis.get_instructions(init) if step.opname == "STORE_ATTR"]
    assert len(stores) >= len(dataclasses.fields(kind))
    assert "__dataclass_builtins_object__" not in init.__code__.co_names


@dataclasses.dataclass(frozen=True)
class Whole:
    """Made by its fields, in whichever order; says so."""

    old: int
    kind: int = 0

    def __post_init__(self) -> None:
        assert self.kind >= 0, "below nothing"


def test_a_copy_has_the_other_values_and_is_made_as_any_is() -> None:
    assert changed(Point(x=1, y=2), y=3) == Point(x=1, y=3)
    assert changed(Whole(1, 2), kind=3) == Whole(1, 3)
    assert changed(Whole(1, 2), old=0) == Whole(0, 2)
    with pytest.raises(AssertionError, match="below nothing"):
        changed(Whole(1, 2), kind=-1)
    with pytest.raises(TypeError, match="z"):
        changed(Point(x=1), z=2)
