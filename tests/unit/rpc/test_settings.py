"""Settings refuse what they do not know and never show secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

import pytest
from annotated_types import Ge

from stratos.rpc.settings import InvalidSettings, describe_settings, load_settings
from tests.support.fakes.rpc_echo import EchoSettings


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    slots: Annotated[int, Ge(1)] = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    names: tuple[str, ...] = ("shm",)
    max_pairs: Annotated[int, Ge(1)] = 4
    lag: Annotated[int, Ge(0)] | None = None
    ring: Ring = field(default_factory=Ring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    url: str
    timeout_s: float = 2.0


class GroupedSettings(EchoSettings):
    env_prefix = "STRATOS_GROUPED_"

    link: Link = Link()
    store: Store | None = None


def load(monkeypatch: pytest.MonkeyPatch, **environ: str) -> GroupedSettings:
    for name, value in environ.items():
        monkeypatch.setenv(f"STRATOS_GROUPED_{name}", value)
    return load_settings(GroupedSettings)


def test_values_of_groups_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, LINK__NAMES='["gloo"]', LINK__LAG="1", LINK__RING__SLOTS="3", LINK__MAX_PAIRS="")
    assert loaded.link == Link(names=("gloo",), lag=1, ring=Ring(slots=3))
    assert loaded.store is None
    assert load(monkeypatch, STORE__URL="file:///x").store == Store(url="file:///x")


def test_a_group_of_flags_wins_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATOS_GROUPED_LINK__LAG", "1")
    assert load_settings(GroupedSettings, link=Link()).link == Link()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("LINK__MAX_PAIR", "LINK__MAX_PAIRS"),
        ("LINK_MAX_PAIRS", "LINK__MAX_PAIRS"),
        ("MAX_PAIRS", "LINK__MAX_PAIRS"),
        ("LINK__RING__SLOT", "LINK__RING__SLOTS"),
    ],
)
def test_an_unknown_name_in_a_group_is_refused_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    text = f"STRATOS_GROUPED_{name}: unknown setting; did you mean STRATOS_GROUPED_{near}?"
    with pytest.raises(InvalidSettings, match=re.escape(text)):
        load(monkeypatch, **{name: "1"})


def test_a_group_is_not_set_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match="STRATOS_GROUPED_LINK: unknown setting"):
        load(monkeypatch, LINK="{}")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"LINK__MAX_PAIRS": "0"}, "LINK__MAX_PAIRS: Input should be greater than or equal to 1"),
        ({"LINK__MAX_PAIRS": "x"}, "LINK__MAX_PAIRS: Input should be a valid integer"),
        ({"LINK__RING__SLOTS": "0"}, "LINK__RING__SLOTS: Input should be greater"),
        ({"LINK__NAMES": "gloo"}, "LINK__NAMES: must be JSON"),
        ({"LINK__NAMES": "[1]"}, "LINK__NAMES: Input should be a valid string"),
        ({"STORE__TIMEOUT_S": "1"}, "STORE__URL: Field required"),
    ],
)
def test_a_bad_value_in_a_group_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(f"STRATOS_GROUPED_{text}")):
        load(monkeypatch, **environ)


class WithRequiredGroup(EchoSettings):
    store: Store
    """Nothing works without it."""


def test_a_group_that_is_missing_as_a_whole_is_named_by_what_it_requires() -> None:
    with pytest.raises(InvalidSettings, match=re.escape("STRATOS_ECHO_STORE__URL: Field required")):
        load_settings(WithRequiredGroup)


def test_values_of_groups_are_described_by_path() -> None:
    shown = describe_settings(GroupedSettings(store=Store(url="redis://user:hunter2@host")))
    assert (shown["link.ring.slots"], shown["link.max_pairs"]) == ("8", "4")
    assert shown["store.url"] == "redis://user:***@host"
    assert describe_settings(GroupedSettings())["store.url"] == "None"
