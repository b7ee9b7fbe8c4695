"""Whose output is marked is the operator's choice: settings decide, no request can turn it on, off or around."""

from __future__ import annotations

from typing import Any

import pytest

from stratos.common.errors import BadRequest
from stratos.core.requests.watermark import Watermark
from stratos.core.tenant import Tenant
from stratos.rpc.settings import InvalidSettings, describe_settings, load_settings
from stratos_gateway.models.watermark_policy import WatermarkPolicy, read_policy
from stratos_gateway.preparation.dialects import CHAT, COMPLETION
from stratos_gateway.preparation.generation import GenerationPreparer
from stratos_gateway.settings import GatewaySettings
from tests.support.reference.shipped_model import preparation_tools, served_model

KEY = "a secret of 24 bytes, ok"
REQUIRED = {"MODEL__PATH": "m", "ROUTER_ADDRESSES": '["r:1"]', "REDIS_URL": "redis://r", "KEY_PEPPER": "p"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(f"STRATOS_GATEWAY_{name}", value)


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> GatewaySettings:
    for name, value in values.items():
        monkeypatch.setenv(f"STRATOS_GATEWAY_WATERMARK__{name.upper()}", value)
    return load_settings(GatewaySettings)


async def marks(policy: WatermarkPolicy, tenant: str = "acme", **body: Any) -> list[Watermark | None]:
    tools = preparation_tools(served_model(), watermarks=policy)
    caller = Tenant(name=tenant)
    completion = await GenerationPreparer(tools, COMPLETION).prepare(
        {"model": "base", "prompt": ["x", "y"], **body}, caller, ""
    )
    chat_body = {"model": "base", "messages": [{"role": "user", "content": "x"}], **body}
    chat = await GenerationPreparer(tools, CHAT).prepare(chat_body, caller, "")
    return [spec.sampling.watermark for spec in (*completion.specs, *chat.specs)]


async def test_nothing_is_marked_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = read_policy(settings(monkeypatch, tenants='["acme"]').watermark)
    assert await marks(policy) == [None] * 3


async def test_with_a_key_every_output_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(monkeypatch, key=KEY, gamma="0.5", delta="1.25", context_tokens="2")
    expected = Watermark(key=KEY.encode(), gamma=0.5, delta=1.25, num_context_tokens=2)
    assert await marks(read_policy(given.watermark)) == [expected] * 3
    assert KEY not in str(describe_settings(given))


@pytest.mark.parametrize(
    ("tenants", "models", "is_marked"),
    [
        ('["acme"]', "[]", True),
        ('["other"]', "[]", False),
        ("[]", '["base"]', True),
        ("[]", '["c-headers"]', False),
        ('["acme"]', '["c-headers"]', False),
        ('["other", "acme"]', '["base", "c-headers"]', True),
    ],
)
async def test_tenant_and_model_both_have_to_be_meant(
    monkeypatch: pytest.MonkeyPatch, tenants: str, models: str, is_marked: bool
) -> None:
    policy = read_policy(settings(monkeypatch, key=KEY, tenants=tenants, models=models).watermark)
    assert [mark is not None for mark in await marks(policy)] == [is_marked] * 3


async def test_a_pin_of_a_marked_model_is_marked_and_no_other_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = f"base@{served_model().base.digest[:8]}"
    for name, is_marked in (("base", True), ("other", False)):
        policy = read_policy(settings(monkeypatch, key=KEY, models=f'["{name}"]').watermark)
        assert [mark is not None for mark in await marks(policy, model=pin)] == [is_marked] * 3


@pytest.mark.parametrize("value", [None, False, True, {"delta": 0}])
@pytest.mark.parametrize("name", ["watermark", "watermark_key", "watermarking_config"])
async def test_a_request_has_no_say(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    for policy in (WatermarkPolicy(), read_policy(settings(monkeypatch, key=KEY).watermark)):
        with pytest.raises(BadRequest) as caught:
            await marks(policy, **{name: value})
        assert (caught.value.code, caught.value.param) == ("unknown_parameter", name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("key", "too short", "16 to 64 bytes"),
        ("key", "ä" * 33, "16 to 64 bytes"),
        ("gamma", "0", "greater than or equal"),
        ("gamma", "nan", "less than or equal"),
        ("delta", "inf", "less than or equal"),
        ("delta", "0", "greater than 0"),
        ("context_tokens", "9", "less than or equal to 8"),
    ],
)
def test_a_gateway_does_not_start_with_what_cannot_mark(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    with pytest.raises(InvalidSettings, match=f"WATERMARK__{name.upper()}: .*{message}") as caught:
        settings(monkeypatch, **{"key": KEY, name: value})
    assert KEY not in str(caught.value)
    assert "too short" not in str(caught.value)
