"""Settings of an engine from names alone: a test says ``prefix_cache=False`` and need not know the group."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from stratos.engine.settings import RunnerConfig, SchedulerConfig

ConfigT = TypeVar("ConfigT", RunnerConfig, SchedulerConfig)


def scheduler_config(**values: Any) -> SchedulerConfig:
    """A scheduler's settings; ``values`` of its own, of its switches and of its baseline."""
    return _with_values(SchedulerConfig(), values, ("switches", "baseline"))


def runner_config(**values: Any) -> RunnerConfig:
    """A runner's settings; ``values`` of its own, of its kernels and of streaming."""
    return _with_values(RunnerConfig(), values, ("kernels", "streaming"))


def _with_values(config: ConfigT, values: dict[str, Any], groups: tuple[str, ...]) -> ConfigT:
    own = dict(values)
    for name in groups:
        group = getattr(config, name)
        changes = {field.name: own.pop(field.name) for field in fields(group) if field.name in own}
        own[name] = replace(group, **changes)
    return replace(config, **own)
