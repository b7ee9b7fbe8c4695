"""``adapter_config.json`` of a LoRA adapter: what is implemented is read, what would change the result is refused.

Rank and alpha may differ by module: ``rank_pattern`` and ``alpha_pattern`` map the end of a module's name, at a dot,
to a value.  PEFT reads the names as regular expressions; here they are plain names, with an optional leading ``^`` that
asks for the whole name, because a pattern from a file must not decide how long matching takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stratos.common.errors import InvalidAdapter, InvalidCheckpoint
from stratos.core.files.model_files import read_json

Number = TypeVar("Number", int, float)
CONFIG_NAME = "adapter_config.json"
MAX_RANK = 256
MAX_ALPHA = 1e6
MAX_PATTERNS = 4096
_PLAIN_NAME = re.compile(r"^\^?[A-Za-z0-9_]+(?:\\?\.[A-Za-z0-9_]+)*$")
_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "fan_in_fan_out",
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "megatron_config",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
"""Features of PEFT that change what an adapter computes."""
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that subtract something from the base weights; converted adapters say ``true`` instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """Ranks and scalings of an adapter's modules."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    def rank_of(self, module: str) -> int:
        """Rank of the module of that name in the base model, e.g. "model.layers.0.self_attn.q_proj"."""
        return _lookup(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """Factor on B @ A: alpha / r, or alpha / sqrt(r) when rank-stabilised."""
        rank, alpha = self.rank_of(module), _lookup(self.alpha_pattern, module, self.alpha)
        return alpha / (rank**0.5 if self.use_rslora else rank)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read the configuration of an adapter folder.

    Raises:
        InvalidAdapter: malformed, or it asks for something that is not implemented.
    """
    try:
        config = read_json(folder / CONFIG_NAME)
    except InvalidCheckpoint as error:
        raise InvalidAdapter(error.message) from error
    _refuse_unsupported(config)
    return AdapterConfig(
        rank=_rank(config.get("r"), "r"),
        alpha=_alpha(config.get("lora_alpha"), "lora_alpha"),
        use_rslora=bool(config.get("use_rslora", False)),
        rank_pattern={_name(k): _rank(v, "rank_pattern") for k, v in _pattern(config, "rank_pattern").items()},
        alpha_pattern={_name(k): _alpha(v, "alpha_pattern") for k, v in _pattern(config, "alpha_pattern").items()},
    )


def _refuse_unsupported(config: dict[str, Any]) -> None:
    if modules := config.get("modules_to_save"):
        raise InvalidAdapter(
            f"{CONFIG_NAME}: only plain LoRA is supported: modules_to_save replaces whole modules "
            f"({(', '.join(map(str, modules)) if isinstance(modules, list) else str(modules))[:100]}); train without it"
        )
    unsupported = [name for name in _UNSUPPORTED if config.get(name)]
    if config.get("peft_type") != "LORA" or unsupported:
        raise InvalidAdapter(f"{CONFIG_NAME}: only plain LoRA is supported ({', '.join(unsupported)})")
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise InvalidAdapter(f"{CONFIG_NAME}: bias must be none, all or lora_only")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_BASE_CHANGING):
        raise InvalidAdapter(
            f"{CONFIG_NAME}: init_lora_weights {start[:100]!r} changed the base weights; save it converted to LoRA"
        )


def _rank(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise InvalidAdapter(f"{CONFIG_NAME}: {name} must be an integer in [1, {MAX_RANK}]")
    return value


def _alpha(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MAX_ALPHA:
        raise InvalidAdapter(f"{CONFIG_NAME}: {name} must be a positive number")
    return float(value)


def _pattern(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict) or len(value) > MAX_PATTERNS:
        raise InvalidAdapter(f"{CONFIG_NAME}: {name} must be an object of at most {MAX_PATTERNS} entries")
    return value


def _name(pattern: str) -> str:
    if not _PLAIN_NAME.match(pattern):
        raise InvalidAdapter(
            f"{CONFIG_NAME}: {pattern[:100]!r} is not supported as a pattern; name modules, or the end of their names"
        )
    return pattern.replace("\\.", ".")


def _lookup(pattern: Mapping[str, Number], module: str, default: Number) -> Number:
    """The first entry whose name ends the module's at a dot, as PEFT looks it up."""
    for name, value in pattern.items():
        plain = name.removeprefix("^")
        if module == plain or (plain == name and module.endswith(f".{plain}")):
            return value
    return default
