"""Records are dataclasses for all that reads them, and nothing slower than an assignment for what makes them."""

from __future__ import annotations

import dataclasses
import dis
from types import FunctionType
from typing import cast

import pytest

from stratos.common.changed import record
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
