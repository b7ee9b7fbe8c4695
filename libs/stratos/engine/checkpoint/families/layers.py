"""Sliding windows and rotations, which differ from layer to layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.checkpoint.families.family import Family
from stratos.engine.checkpoint.fields import Fields, flag, positive_int, positive_number, shown
from stratos.engine.checkpoint.rope_config import RopeConfig, parse_rope

FULL, SLIDING = "full_attention", "sliding_attention"
LAYER_TYPES = {FULL: False, SLIDING: True}
"""Type of a layer -> whether it has a window."""
UNROTATED = RopeConfig(kind="none")


def parse_windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of every layer; ``None``: it sees all.

    Raises:
        InvalidCheckpoint: a senseless value.
    """
    rule = family.windows
    is_used = rule in ("all", "by-pattern") or (rule != "never" and flag(fields, "use_sliding_window", False))
    size = positive_int(fields, "sliding_window") if is_used and fields.get("sliding_window") is not None else None
    if rule not in ("by-layer", "by-pattern", "by-turns"):
        return (size,) * num_layers
    types = fields.get("layer_types")
    if types is None and rule == "by-pattern":
        period = positive_int(fields, "sliding_window_pattern", family.window_period)
        return tuple(size if (layer + 1) % period else None for layer in range(num_layers))
    if types is None:
        first = fields.get("max_window_layers")
        if size is not None and (isinstance(first, bool) or not isinstance(first, int)):
            raise InvalidCheckpoint(f"config.json: max_window_layers must be an integer, not {shown(first)}")
        if rule == "by-turns":
            return tuple(None if layer % 2 or layer >= (first or 0) else size for layer in range(num_layers))
        return tuple(size if first is not None and layer >= first else None for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers or any(str(t) not in LAYER_TYPES for t in types):
        known = ", ".join(LAYER_TYPES)
        raise InvalidCheckpoint(f"config.json: layer_types must name one of {known} for each of {num_layers} layers")
    if size is None and any(LAYER_TYPES[name] for name in types):
        raise InvalidCheckpoint("config.json: layer_types asks for a sliding window, but sliding_window is not in use")
    return tuple(size if LAYER_TYPES[name] else None for name in types)


def parse_ropes(
    fields: Fields, family: Family, windows: tuple[int | None, ...], head_dim: int
) -> tuple[RopeConfig, ...]:
    """The rotation of every layer.

    Args:
        fields: of ``config.json``, over the defaults of the family.
        family: its family.
        windows: of every layer.
        head_dim: features of a head.

    Raises:
        InvalidCheckpoint: a kind that is not implemented, or a senseless value.
    """
    if family.local_theta_field:
        full, local = _full_and_local(fields, family, head_dim)
        return tuple(full if window is None else local for window in windows)
    rope = _rope(fields, family, head_dim)
    if not family.has_unrotated_layers:
        return (rope,) * len(windows)
    return tuple(rope if is_rotated else UNROTATED for is_rotated in _rotated_layers(fields, len(windows)))


def _rope(fields: Fields, family: Family, head_dim: int) -> RopeConfig:
    return parse_rope(fields, head_dim, share=family.rotated_share, is_interleaved=family.is_rotation_interleaved)


def _full_and_local(fields: Fields, family: Family, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Rotations of full layers and of those with a window, from either spelling of ``config.json``."""
    both = fields.get("rope_parameters")
    plain = {name: value for name, value in fields.items() if name not in ("rope_parameters", "rope_scaling")}
    if isinstance(both, Mapping) and any(isinstance(value, Mapping) for value in both.values()):
        if not set(both) <= {FULL, SLIDING}:
            raise InvalidCheckpoint(f"config.json: rope_parameters must have {FULL} and {SLIDING} alone")
        parameters: list[Any] = [both.get(name) or {} for name in (FULL, SLIDING)]
    else:
        parameters = [fields.get("rope_scaling") or both or {}, {}]
    local_theta = positive_number(fields, family.local_theta_field)
    full = _rope({**plain, "rope_parameters": parameters[0]}, family, head_dim)
    local = _rope({**plain, "rope_theta": local_theta, "rope_parameters": parameters[1]}, family, head_dim)
    return full, local


def _rotated_layers(fields: Fields, num_layers: int) -> list[bool]:
    stated = fields.get("no_rope_layers")
    if stated is None:
        interval = positive_int(fields, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(stated, list) or len(stated) != num_layers or any(value not in (0, 1) for value in stated):
        raise InvalidCheckpoint(f"config.json: no_rope_layers must be 0 or 1 for each of {num_layers} layers")
    return [bool(value) for value in stated]
