"""The error tree as data."""

from __future__ import annotations

import grpc
import pytest

from stratos.common.error_codes import error_classes, error_from_code
from stratos.common.errors import (
    BadRequest,
    Internal,
    NotFound,
    RateLimited,
    Retryable,
    StratosError,
)


@pytest.mark.parametrize(("code", "cls"), sorted(error_classes().items()))
def test_every_class_names_a_grpc_code_and_a_status_that_agree_on_retrying(code: str, cls: type[StratosError]) -> None:
    assert cls.grpc_code in grpc.StatusCode.__members__
    assert 400 <= cls.http_status <= 599
    if issubclass(cls, Retryable):
        assert cls.http_status in (429, 503)
        assert cls("x").after_s is not None
    assert type(error_from_code(code, "x")) is cls


@pytest.mark.parametrize(
    ("status", "cls"), [(400, BadRequest), (404, NotFound), (429, RateLimited), (503, Retryable), (None, Internal)]
)
def test_an_unknown_code_takes_the_class_of_its_status(status: int | None, cls: type[StratosError]) -> None:
    error = error_from_code("from_the_future", "x", param="p", http_status=status)
    assert type(error) is cls
    assert error.param == "p"
    assert error.code == ("internal_error" if cls is Internal else "from_the_future")


def test_naming_one_error_leaves_its_class_alone() -> None:
    error_from_code("odd", "x", http_status=404)
    assert NotFound("y").code == "not_found"
