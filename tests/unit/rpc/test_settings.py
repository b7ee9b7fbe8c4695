"""Settings refuse what they do not know and never show secrets."""

from __future__ import annotations

import pytest

from stratos.rpc.settings import InvalidSettings, describe_settings, load_settings
from tests.support.rpc_echo import EchoSettings


def test_values_come_from_the_environment_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_ECHO_DRAIN_TIMEOUT_S", "7.5")
    monkeypatch.setenv("STRATOS_ECHO_LISTEN", "127.0.0.1:1234")
    settings = load_settings(EchoSettings, listen="127.0.0.1:99")
    assert (settings.drain_timeout_s, settings.listen) == (7.5, "127.0.0.1:99")


def test_an_unknown_name_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_ECHO_DRAIN_TIMEOUT", "7.5")
    with pytest.raises(InvalidSettings) as caught:
        load_settings(EchoSettings)
    assert "STRATOS_ECHO_DRAIN_TIMEOUT: unknown setting; did you mean STRATOS_ECHO_DRAIN_TIMEOUT_S?" in str(
        caught.value
    )


def test_an_injected_service_link_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_ECHO_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(InvalidSettings, match="enableServiceLinks"):
        load_settings(EchoSettings)


def test_names_of_other_services_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_OTHER_THING", "x")
    load_settings(EchoSettings)


def test_a_bad_value_names_its_variable_and_not_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_ECHO_DRAIN_TIMEOUT_S", "hunter2")
    with pytest.raises(InvalidSettings, match="STRATOS_ECHO_DRAIN_TIMEOUT_S: Input should be a valid number") as caught:
        load_settings(EchoSettings)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_ECHO_PEPPER", "hunter2")
    monkeypatch.setenv("STRATOS_ECHO_REDIS_URL", "redis://user:hunter2@host:6379/0")
    shown = describe_settings(load_settings(EchoSettings))
    assert shown["pepper"] == "***"
    assert shown["redis_url"] == "redis://user:***@host:6379/0"
    assert "hunter2" not in str(shown)
