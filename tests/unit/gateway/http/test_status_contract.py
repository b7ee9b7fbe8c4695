"""What clients are told of statuses, codes and headers is what the gateway sends, row by row."""

from __future__ import annotations

import re
from random import Random

import pytest

from stratos.common import continuation_errors
from stratos.common.error_codes import error_classes
from stratos.common.shed_reason import ShedReason
from stratos.common.slow_peers import ReceiverSlow, SourceSlow
from stratos_gateway.http.errors import answer_headers, public_error
from tests.support.paths import ROOT

ROW = re.compile(r"^\| (\d{3}) \| `([a-z_]+)` \| (.+) \|$", re.MULTILINE)
WITH_VALUES = {"x-should-retry", "connection", "accept-encoding"}
LEFT_OUT = {"retry-after-ms"}
"""Told in the text above the table."""
INTERNAL = {ReceiverSlow, SourceSlow}
"""Workers tell one another; gateways do not know them."""
DESIGNED = {
    "invalid_request": 400, "context_length_exceeded": 400, "content_filter": 400, "invalid_api_key": 401,
    "permission_denied": 403, "model_not_found": 404, "request_too_large": 413, "rate_limit_exceeded": 429,
    "concurrency_limit": 429, "insufficient_quota": 429, "overloaded": 503, "queue_timeout": 503, "draining": 503,
    "adapter_unavailable": 503, "internal_error": 500,
}  # fmt: skip
"""What the platform promised first; rows were added, and none may change."""


def documented() -> dict[str, tuple[int, str]]:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Errors\n") :].split("\n## ")[1]
    return {code: (int(status), headers) for status, code, headers in ROW.findall(section)}


def sent() -> dict[str, tuple[int, str]]:
    assert continuation_errors.InvalidContinuation.code in error_classes()  # these have a module of their own
    found = {}
    for cls in error_classes().values():
        error = cls("text")
        if type(public_error(error)) is cls and cls not in INTERNAL:  # others are shown as one of these
            headers = answer_headers(error, Random(1)).items()
            told = sorted(
                f"`{name}: {value}`" if name in WITH_VALUES else f"`{name}`"
                for name, value in headers
                if name not in LEFT_OUT
            )
            found[cls.code] = public_error(error).http_status, ", ".join(told) or "-"
    return found


def test_the_table_of_errors_is_what_is_sent() -> None:
    assert documented() == sent()


@pytest.mark.parametrize(("code", "status"), DESIGNED.items())
def test_what_was_promised_first_still_holds(code: str, status: int) -> None:
    found, headers = sent()[code]
    assert found == status
    is_told_when = status in (429, 503) and code != "insufficient_quota"
    assert ("`retry-after`" in headers) == is_told_when


def test_reasons_of_a_full_platform_are_documented() -> None:
    text = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
    section = text[text.index("\n## A full platform\n") :].split("\n## ")[1]
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)) == {reason.value for reason in ShedReason}
