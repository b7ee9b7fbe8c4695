"""Every setting is declared once: one default, one text, one name in the environment and one in a chart."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scripts.docs import document_settings
from stratos.rpc.settings import ServiceSettings, Setting, env_name_of, read_environment, settings_of

CLASSES = [document_settings.service_class(service) for service in document_settings.SERVICES]


def groups(cls: type[ServiceSettings]) -> dict[type, list[Setting]]:
    """The library's classes that a settings class holds, and the values it reaches in each."""
    found: dict[type, list[Setting]] = {}
    for setting in settings_of(cls):
        if not issubclass(setting.owner, ServiceSettings):
            found.setdefault(setting.owner, []).append(setting)
    return found


def default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@pytest.mark.parametrize("cls", CLASSES)
def test_every_value_has_a_text(cls: type[ServiceSettings]) -> None:
    for setting in settings_of(cls):
        owner = cls if len(setting.path) == 1 else setting.owner
        assert document_settings.text_of(owner, setting.path[-1]).endswith((".", ")")), setting.path


@pytest.mark.parametrize("cls", CLASSES)
def test_a_group_is_the_librarys_frozen_object_with_the_librarys_defaults(cls: type[ServiceSettings]) -> None:
    for group, settings in groups(cls).items():
        assert group.__dataclass_params__.frozen, group  # type: ignore[attr-defined]
        assert "__slots__" in vars(group), group
        fields = {field.name: field for field in dataclasses.fields(group)}
        for setting in settings:
            assert setting.default == default_of(fields[setting.path[-1]]), setting.path


@pytest.mark.parametrize("cls", CLASSES)
def test_names_are_unique_in_the_environment_and_in_a_chart(cls: type[ServiceSettings]) -> None:
    settings = list(settings_of(cls))
    for name_of in (lambda setting: env_name_of(cls, setting.path), document_settings.chart_path):
        names = [name_of(setting) for setting in settings]
        assert len(set(names)) == len(names)
    for setting in settings:
        assert "__" not in "".join(setting.path), f"{setting.path}: __ leads into a group"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_value_is_reached_by_its_variable(cls: type[ServiceSettings]) -> None:
    for setting in settings_of(cls):
        tree = read_environment(cls, {env_name_of(cls, setting.path): '["7"]' if setting.is_json else "7"})
        for name in setting.path:
            tree = tree[name]
        assert tree == (["7"] if setting.is_json else "7"), setting.path
