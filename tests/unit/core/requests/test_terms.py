"""What is left of a deadline, and what of a request's terms reaches the router."""

from __future__ import annotations

import math

import pytest

from stratos.api.common.v1 import common_pb2
from stratos.core.adapter import AdapterRef
from stratos.core.requests.pins import TTL_24H_S, Breakpoint, PinTerms
from stratos.core.requests.terms import DEFAULT_TERMS, RequestTerms
from stratos.rpc.codec.terms import terms_from_pb, terms_to_part

TERMS = RequestTerms(
    tenant="acme",
    cache_salt=b"salt",
    priority_class=2,
    adapter=AdapterRef(digest="digest", uri="adapters/a"),
    arrival_s=100.0,
    deadline_s=130.0,
)


def sent(terms: RequestTerms, now_s: float) -> common_pb2.RequestTerms:
    return common_pb2.RequestTerms(**terms_to_part(terms, now_s))


@pytest.mark.parametrize(("now_s", "left_s"), [(100.0, 30.0), (129.5, 0.5), (130.0, 0.0), (1000.0, 0.0), (90.0, 40.0)])
def test_what_is_left_never_falls_below_zero(now_s: float, left_s: float) -> None:
    assert TERMS.left_s(now_s) == left_s


def test_without_a_deadline_nothing_runs_out() -> None:
    assert DEFAULT_TERMS.left_s(1e12) is None


def test_a_request_that_moves_keeps_its_arrival_over_processes() -> None:
    terms = RequestTerms(arrival_s=100.0)
    at_worker = terms_from_pb(sent(terms, 103.0), 7.0)
    at_source = terms_from_pb(sent(at_worker, 9.0), 1000.0)
    assert (at_worker.arrival_s, at_worker.began_s) == (7.0, 4.0)
    assert (at_source.arrival_s, at_source.began_s) == (1000.0, 995.0)
    assert terms_from_pb(sent(RequestTerms(), 5.0), 6.0).began_s == 6.0, "a record without times has no age"


@pytest.mark.parametrize(("ratio", "taken"), [(0.25, 0.25), (math.nan, 0.0), (math.inf, 0.0), (-1.0, 0.0), (2.0, 1.0)])
def test_pins_of_a_message_stay_within_their_bounds(ratio: float, taken: float) -> None:
    marks = (Breakpoint(2**32 - 1, 2**32 - 1),)
    pins = PinTerms(breakpoints=marks, device_ratio=ratio, host_ratio=ratio)
    found = terms_from_pb(sent(RequestTerms(pins=pins), 5.0), 5.0).pins
    assert (found.device_ratio, found.host_ratio) == (taken, taken)
    assert found.block_runs(16) == [((2**32 - 1) // 16, TTL_24H_S)], "nothing is made by block"


def test_a_deadline_of_zero_is_a_deadline() -> None:
    assert RequestTerms(deadline_s=0.0).left_s(1.0) == 0.0


def test_the_router_gets_no_salt_and_no_uri_and_all_the_rest() -> None:
    seen = TERMS.for_router()
    assert seen == RequestTerms(
        tenant="acme", priority_class=2, adapter=AdapterRef(digest="digest"), arrival_s=100.0, deadline_s=130.0
    )
    assert TERMS.cache_salt == b"salt"


def test_the_salt_is_in_no_text_of_the_terms() -> None:
    assert "salt" not in repr(TERMS)


def test_a_tenants_name_is_a_label_that_the_router_does_not_get() -> None:
    terms = RequestTerms(tenant="tn_1", tenant_name="acme")
    assert (terms.label, terms.for_router().label) == ("acme", "tn_1")
    assert terms_from_pb(sent(terms, 5.0), 5.0).tenant_name == "acme"
