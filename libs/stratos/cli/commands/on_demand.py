"""Groups whose commands are made when they are asked for: reading the flags of all takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_command_name, solve_typer_info_defaults
from typer.models import TyperInfo


def on_demand(load: Callable[[], typer.Typer]) -> type[TyperGroup]:
    """Class of a group that has the commands and groups of ``load()``; nothing is loaded before one is asked for."""

    class GroupOnDemand(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "commands": _Commands(load, settings)})

    return GroupOnDemand


class _Commands(Mapping[str, Any]):
    """By name, in the order of the help."""

    def __init__(self, load: Callable[[], typer.Typer], settings: Mapping[str, Any]) -> None:
        self._load = load
        self._looks = {"rich_markup_mode": settings["rich_markup_mode"]}
        self._group_looks = {**self._looks, "suggest_commands": settings["suggest_commands"]}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    @cached_property
    def _makers(self) -> dict[str, Callable[[], Any]]:
        return dict(self._makers_of(self._load()))

    def _makers_of(self, app: typer.Typer) -> Iterator[tuple[str, Callable[[], Any]]]:
        for command in app.registered_commands:
            assert command.callback is not None
            name = command.name or get_command_name(command.callback.__name__)
            yield name, partial(get_command_from_info, command, pretty_exceptions_short=True, **self._looks)
        for group in app.registered_groups:
            assert group.typer_instance is not None
            info = solve_typer_info_defaults(group)
            if info.name:
                yield info.name, partial(self._group, info, group.typer_instance)
            else:
                yield from self._makers_of(group.typer_instance)

    def _group(self, info: TyperInfo, app: typer.Typer) -> TyperGroup:
        made = info.cls or on_demand(lambda: app)
        return made(name=info.name, no_args_is_help=info.no_args_is_help, help=info.help, **self._group_looks)
