"""Terms of a model that is added: no price is lost, and none is invented."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.tenancy.plan import Plan
from stratos.core.tenancy.prices import Price
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.record import Kind
from stratos_gateway.admin.model_terms import check_same, check_size, terms_of


def snapshot(*plans: Plan, models: tuple[tuple[int, ModelRecord], ...] = ()) -> Any:
    records = {
        Kind.PLAN: [SimpleNamespace(value=plan) for plan in plans],
        Kind.MODEL: [SimpleNamespace(id=f"{m.name}/{m.digest}", version=v, value=m) for v, m in models],
    }
    return SimpleNamespace(of_kind=records.__getitem__)


def test_a_size_that_no_plan_prices_is_refused_where_plans_have_prices() -> None:
    paid = Plan(name="paid", prices={"8b": Price(prompt=1)})
    check_size("8b", snapshot(paid))
    check_size("", snapshot(paid))
    check_size("tiny", snapshot(Plan(name="free")))
    with pytest.raises(BadRequest, match="there are: 8b") as caught:
        check_size("8B", snapshot(paid))
    assert caught.value.param == "size"


def test_terms_are_those_of_the_revision_itself_then_of_the_newest_one() -> None:
    of = {d: ModelRecord(name="small", digest=d, text_digest=f"t{d}", size=f"s{d}", source="/m") for d in "ab"}
    known = snapshot(models=((2, of["b"]), (1, of["a"])))
    models: Any = SimpleNamespace(fixed=lambda digest: None, get=lambda name: None)
    assert [terms_of("small", digest, known, models)["size"] for digest in "abc"] == ["sa", "sb", "sb"]
    assert not {"text_digest", "source", "created_unix_s"} & terms_of("small", "c", known, models).keys()
    assert terms_of("other", "c", known, models) == {}
    base = SimpleNamespace(base=SimpleNamespace(size="8b"), max_input_tokens=9, default_max_tokens=5)
    fixed: Any = SimpleNamespace(fixed=lambda digest: base if digest == "a" else None, get=lambda name: base)
    assert terms_of("small", "a", known, fixed)["size"] == "8b"  # settings win, whatever a record says
    assert terms_of("base", "c", known, fixed) == {"size": "8b", "max_input_tokens": 9, "default_max_tokens": 5}


def test_drafts_of_a_model_that_settings_name_are_refused_since_no_record_starts_its_workers() -> None:
    served: Any = SimpleNamespace()
    check_same(served, served, {"speculation": None})
    with pytest.raises(BadRequest, match="its workers draft as they were started") as caught:
        check_same(served, served, {"speculation": {"method": "off"}})
    assert caught.value.param == "speculation"
