import re
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from stratos.common import errors
from stratos.common.error_codes import error_classes
from stratos.common.shed_reason import ShedReason
from stratos.core.tenant import Tenant
from stratos_gateway.access.auth import bearer_key, sent_key
from stratos_gateway.access.concurrency import Admission
from stratos_gateway.http.body import first_headers
from stratos_gateway.http.errors import SHED_HEADER, error_body, public_error, public_param, retry_headers
from stratos_gateway.metrics import GatewayMetrics
from tests.support.paths import ROOT


@pytest.mark.parametrize("cls", error_classes().values())
def test_every_error_has_a_public_shape(cls: type[errors.StratosError]) -> None:
    error = cls("text")
    body = error_body(error)["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["code"] not in (
        "busy",
        "wait_too_long",
        "worker_lost",
        "identity_mismatch",
        "invalid_checkpoint",
        "adapter_mismatch",
    )
    headers = retry_headers(error, Random(1))
    is_retryable = public_error(error).http_status in (429, 503) and body["code"] not in (
        "insufficient_quota",
        "request_over_rate_limit",
    )
    assert ("retry-after" in headers) == is_retryable
    if is_retryable:
        assert 1 <= int(headers["retry-after"]) <= 30


def test_where_adapters_are_kept_is_no_business_of_clients() -> None:
    error = errors.AdapterUnavailable("cannot be fetched: the object store folder /srv/store does not exist", after_s=9)
    assert "/srv" not in error_body(error)["error"]["message"]
    assert error_body(errors.AdapterMismatch("store://x has digest ab")) == {
        "error": {
            "message": "the adapter's files are not the ones that were registered; register it again",
            "type": "server_error",
            "param": None,
            "code": "adapter_unavailable",
        }
    }
    assert public_error(error).code == "adapter_unavailable"
    assert isinstance(shown := public_error(error), errors.AdapterUnavailable)
    assert shown.after_s == 9


SECRETS = ("redis_url", "decode-3", "7 workers", "another tenant")


@pytest.mark.parametrize(
    "cls",
    [
        errors.DependencyDown, errors.QueueTimeout, errors.Overloaded, errors.Draining, errors.Busy, errors.WorkerLost,
        errors.AdapterUnavailable, errors.AdapterMismatch, errors.IdentityMismatch, errors.InvalidCheckpoint,
    ],
)  # fmt: skip
def test_texts_about_processes_stores_and_other_tenants_are_for_operators(cls: type[errors.StratosError]) -> None:
    message = error_body(cls(f"text of {', '.join(SECRETS)}"))["error"]["message"]
    assert message
    assert not [secret for secret in SECRETS if secret in message]


def test_a_tenants_own_limits_and_mistakes_are_told() -> None:
    for cls in (errors.RateLimited, errors.ConcurrencyLimited, errors.BadRequest, errors.ModelNotFound):
        assert error_body(cls("you have 4 open"))["error"]["message"] == "you have 4 open"


@pytest.mark.parametrize(
    ("param", "route", "shown"),
    [
        ("num_prompt_tokens", "messages", "messages"),
        ("prompt_ids", "prompt", "prompt"),
        ("inputs", "input", "input"),
        ("messages", "prompt", "prompt"),
        ("choices", "messages", "n"),
        ("num_logprobs", "prompt", "logprobs"),
        ("request_id", "prompt", None),
        ("cache_salt", "messages", None),
        ("temperature", "messages", "temperature"),
        ("stream_options.include_usage", "messages", "stream_options.include_usage"),
        (None, "messages", None),
    ],
)
def test_parameters_have_the_names_of_the_route(param: str | None, route: str, shown: str | None) -> None:
    assert public_param(param, route) == shown


PARAM = re.compile(r"""param=["']([a-z_]+)["']""")
PROCESSES = (
    *(f"libs/stratos/{name}" for name in ("worker", "engine", "kv_transfer", "rpc", "routing", "core/requests")),
    "services/router",
)
PUBLIC = {
    "bad_words", "dimensions", "grammar", "input", "logit_bias", "max_tokens", "messages", "metadata", "min_tokens",
    "model", "n", "prompt", "stop", "stop_token_ids",
}  # fmt: skip


def test_every_field_that_another_process_may_name_is_public_or_known_to_be_internal() -> None:
    files = [path for folder in PROCESSES for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in files for name in PARAM.findall(path.read_text(encoding="utf-8"))}
    assert {"choices", "prompt_ids", "num_prompt_tokens"} <= named
    unknown = {name for name in named if public_param(name, "prompt") == name} - PUBLIC
    assert not unknown, "say in stratos_gateway.http.errors what clients call them"


def test_own_limits_say_exactly_when_others_are_spread() -> None:
    exact = {retry_headers(errors.RateLimited("x", after_s=7), Random(i))["retry-after"] for i in range(20)}
    spread = {retry_headers(errors.Overloaded("x", after_s=7), Random(i))["retry-after"] for i in range(20)}
    assert exact == {"7"}
    assert len(spread) > 3
    soon = retry_headers(errors.RateLimited("x", after_s=0.0125), Random(1))
    assert (soon["retry-after"], soon["retry-after-ms"]) == ("1", "13")


@pytest.mark.parametrize(
    ("estimate_s", "least_s", "most_s"), [(0.0, 1, 1.5), (8.0, 8, 12), (29.0, 20, 30), (900.0, 20, 30)]
)
def test_the_time_of_a_full_system_is_bounded_and_never_the_same(
    estimate_s: float, least_s: float, most_s: float
) -> None:
    error = errors.Overloaded("x", after_s=estimate_s)
    drawn = [int(retry_headers(error, Random(seed))["retry-after-ms"]) / 1000 for seed in range(50)]
    assert least_s <= min(drawn) < max(drawn) <= most_s + 0.001
    assert len(set(drawn)) > 40


@pytest.mark.parametrize("reason", ShedReason)
def test_a_full_system_says_why_it_refused(reason: ShedReason) -> None:
    assert retry_headers(errors.Overloaded("x", reason=reason), Random(1))[SHED_HEADER] == reason.value


def test_no_other_reason_is_told() -> None:
    for error in (errors.Overloaded("x", reason="of a newer peer"), errors.Overloaded("x"), errors.WorkerLost("x")):
        assert SHED_HEADER not in retry_headers(error, Random(1))


def test_a_spent_budget_is_not_tried_again() -> None:
    assert retry_headers(errors.InsufficientQuota("x"), Random(0)) == {"x-should-retry": "false"}


def test_admission_gives_places_back_on_every_way_out() -> None:
    admission = Admission(3, 2, GatewayMetrics(CollectorRegistry()))
    with admission.enter(Tenant(name="a")), admission.enter(Tenant(name="a")):
        with pytest.raises(errors.ConcurrencyLimited), admission.enter(Tenant(name="a")):
            pass
        with admission.enter(Tenant(name="b")), pytest.raises(errors.Overloaded), admission.enter(Tenant(name="c")):
            pass
    with pytest.raises(ZeroDivisionError), admission.enter(Tenant(name="a")):
        raise ZeroDivisionError
    assert admission.num_open == 0
    admission.is_draining = True
    with pytest.raises(errors.Draining):
        admission.check(Tenant(name="a"))


@pytest.mark.parametrize("value", ["", "sk-x", "Basic sk-x", "Bearer", "Bearer  ", "Bearer " + "x" * 9000])
def test_headers_without_a_key_are_refused(value: str) -> None:
    with pytest.raises(errors.InvalidApiKey):
        bearer_key({"authorization": value} if value else {})
    with pytest.raises(errors.InvalidApiKey):
        sent_key({b"authorization": value.encode()} if value else {})
    assert bearer_key({"authorization": "bearer sk-x"}) == "sk-x"


def sent_key_of(headers: list[tuple[bytes, bytes]]) -> str:
    return sent_key(first_headers({"headers": headers}))


def test_the_first_key_that_was_sent_counts() -> None:
    one, other, x_key = (b"authorization", b"Bearer one"), (b"authorization", b"Bearer two"), (b"x-api-key", b"three")
    assert sent_key_of([x_key, (b"host", b"h"), one, other]) == "one"
    assert sent_key_of([(b"host", b"h"), x_key, (b"x-api-key", b"four")]) == "three"
    with pytest.raises(errors.InvalidApiKey):
        sent_key_of([(b"authorization", b""), x_key])
