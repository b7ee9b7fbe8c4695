from random import Random

import pytest
from prometheus_client import CollectorRegistry

from stratos.common import errors
from stratos_gateway.access.auth import bearer_key
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.http.errors import error_body, public_error, retry_headers
from stratos_gateway.metrics import GatewayMetrics


@pytest.mark.parametrize("cls", errors.error_classes().values())
def test_every_error_has_a_public_shape(cls: type[errors.StratosError]) -> None:
    error = cls("text")
    body = error_body(error)["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] not in ("busy", "worker_lost", "identity_mismatch", "invalid_checkpoint", "adapter_mismatch")
    headers = retry_headers(error, Random(1))
    is_retryable = public_error(error).http_status in (429, 503) and body["code"] != "insufficient_quota"
    assert ("retry-after" in headers) == is_retryable
    if is_retryable:
        assert 1 <= int(headers["retry-after"]) <= 30


def test_where_adapters_are_kept_is_no_business_of_clients() -> None:
    error = errors.AdapterUnavailable("cannot be fetched: the object store folder /srv/store does not exist", after_s=9)
    assert "/srv" not in error_body(error)["error"]["message"]
    assert public_error(error).code == "adapter_unavailable"
    assert isinstance(shown := public_error(error), errors.AdapterUnavailable)
    assert shown.after_s == 9


def test_own_limits_say_exactly_when_others_are_spread() -> None:
    exact = {retry_headers(errors.RateLimited("x", after_s=7), Random(i))["retry-after"] for i in range(20)}
    spread = {retry_headers(errors.Overloaded("x", after_s=7), Random(i))["retry-after"] for i in range(20)}
    assert exact == {"7"}
    assert len(spread) > 3
    assert retry_headers(errors.InsufficientQuota("x"), Random(0)) == {"x-should-retry": "false"}


def test_admission_gives_places_back_on_every_way_out() -> None:
    admission = Admission(3, 2, GatewayMetrics(CollectorRegistry()))
    with admission.enter("a"), admission.enter("a"):
        with pytest.raises(errors.ConcurrencyLimited), admission.enter("a"):
            pass
        with admission.enter("b"), pytest.raises(errors.Overloaded), admission.enter("c"):
            pass
    with pytest.raises(ZeroDivisionError), admission.enter("a"):
        raise ZeroDivisionError
    assert admission.num_open == 0
    admission.is_draining = True
    with pytest.raises(errors.Draining), admission.enter("a"):
        pass


@pytest.mark.parametrize("value", ["", "sk-x", "Basic sk-x", "Bearer", "Bearer  ", "Bearer " + "x" * 500])
def test_headers_without_a_key_are_refused(value: str) -> None:
    with pytest.raises(errors.InvalidApiKey):
        bearer_key({"authorization": value} if value else {})
    assert bearer_key({"authorization": "bearer sk-x"}) == "sk-x"
