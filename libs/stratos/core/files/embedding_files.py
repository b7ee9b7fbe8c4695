"""How a model folder wants to be pooled: the files of sentence-transformers, and the fields of ``config.json``.

    modules.json                      the chain: Transformer, Pooling, and Normalize or not
    <pooling module>/config.json      which pooling: exactly one of ``pooling_mode_*`` is true
    config.json                       ``hidden_size``, ``is_matryoshka``, ``matryoshka_dimensions``

A folder without ``modules.json`` is pooled at its last token and scaled to length 1: what a causal decoder can do.
Modules that would change the vector and are not implemented (``Dense``, ``max`` pooling, ...) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import MODULES_NAME, ModelFiles, read_json, read_json_value
from stratos.core.requests.embedding import PoolingKind

PoolingSetting = Literal["auto", "last", "mean", "off"]
MatryoshkaSetting = Literal["auto", "on", "off"]
_POOLING_MODES = {
    "pooling_mode_lasttoken": PoolingKind.LAST,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "lasttoken": PoolingKind.LAST,
    "mean": PoolingKind.MEAN,
}
"""Name in a pooling module's configuration, of either spelling, -> what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """How inputs of a model become vectors."""

    pooling: PoolingKind
    normalizes: bool
    size: int
    """Components of a whole vector."""
    matryoshka: tuple[int, ...] | None = None
    """Sizes a vector may be cut to; empty means any, ``None`` means that it must not be cut."""

    def allows(self, num_dimensions: int) -> bool:
        """Whether a vector of so many components means something."""
        if num_dimensions == self.size:
            return True
        if self.matryoshka is None or not 0 < num_dimensions < self.size:
            return False
        return not self.matryoshka or num_dimensions in self.matryoshka


def read_embedding_config(
    files: ModelFiles, pooling: PoolingSetting = "auto", matryoshka: MatryoshkaSetting = "auto"
) -> EmbeddingConfig | None:
    """Embedding configuration of a model folder, overridden by the settings; ``None`` when embedding is off.

    Raises:
        InvalidCheckpoint: the folder asks for a pooling or a module that is not implemented, or is malformed.
    """
    if pooling == "off":
        return None
    kind, normalizes = _from_modules(files.path) if pooling == "auto" else (PoolingKind(pooling), True)
    size = files.config.get("hidden_size")
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise InvalidCheckpoint(f"config.json: hidden_size must be a positive integer, not {size!r}")
    return EmbeddingConfig(
        pooling=kind, normalizes=normalizes, size=size, matryoshka=_matryoshka(files.config, matryoshka, size)
    )


def _from_modules(path: Path) -> tuple[PoolingKind, bool]:
    if not (path / MODULES_NAME).exists():
        return PoolingKind.LAST, True
    kind, normalizes = None, False
    for module in _modules(path):
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling" and kind is None:
            kind = _pooling_kind(path / _folder(module) / "config.json")
        elif name == "Normalize":
            normalizes = True
        elif name != "Transformer":
            raise InvalidCheckpoint(f"{MODULES_NAME}: a module of type {module.get('type')!r} is not supported")
    if kind is None:
        raise InvalidCheckpoint(f"{MODULES_NAME} names no Pooling module")
    return kind, normalizes


def _modules(path: Path) -> list[Mapping[str, Any]]:
    modules = read_json_value(path / MODULES_NAME)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InvalidCheckpoint(f"{path / MODULES_NAME} must hold a list of modules")
    return modules


def _folder(module: Mapping[str, Any]) -> str:
    """A module's folder, which must be a plain name in the folder of ``modules.json``."""
    name = module.get("path")
    if not isinstance(name, str) or not name or Path(name).name != name or name == "..":
        raise InvalidCheckpoint(f"{MODULES_NAME}: {name!r} is not the name of a folder next to it")
    return name


def _pooling_kind(path: Path) -> PoolingKind:
    config = read_json(path)
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(config.get("pooling_mode"), str):
        modes.append(config["pooling_mode"])
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        wanted = ", ".join(modes) or "nothing"
        raise InvalidCheckpoint(
            f"{path.parent.name}/{path.name} asks for pooling by {wanted}; supported: the last token, or the mean. "
            "The gateway's setting POOLING overrides it"
        )
    return _POOLING_MODES[modes[0]]


def _matryoshka(config: Mapping[str, Any], setting: MatryoshkaSetting, size: int) -> tuple[int, ...] | None:
    listed = config.get("matryoshka_dimensions") or []
    if not isinstance(listed, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 < n <= size for n in listed
    ):
        raise InvalidCheckpoint(f"config.json: matryoshka_dimensions must be a list of integers in [1, {size}]")
    is_trained = setting == "on" or (setting == "auto" and (config.get("is_matryoshka") is True or bool(listed)))
    return tuple(listed) if is_trained else None
