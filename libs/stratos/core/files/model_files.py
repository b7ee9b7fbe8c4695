"""A model folder on disk, read without torch: configuration, digest, what a gateway must know of it.

Layout is Hugging Face's: ``config.json``, ``*.safetensors``, ``tokenizer.json``; a folder that was made for a GGUF file
(``stratos.text.gguf.folder``) has links to its parts in place of safetensors.  The digest (``digest``) is that of
``config.json`` and all weight files in name order; it names the model everywhere downstream of the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.digest import files_digest, never
from stratos.core.files.handed_digest import hand_over, receive, state_of
from stratos.core.files.text_part import context_length, text_fields

CONFIG_NAME = "config.json"
MODULES_NAME = "modules.json"
"""Present in folders that sentence-transformers saved: models that were trained to embed."""
MAX_JSON_BYTES = 64 * 1024 * 1024
"""The largest files of published models, vocabularies of 256k entries, have half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model folder, described without loading it."""

    path: Path
    config: dict[str, Any]
    weight_paths: tuple[Path, ...]
    digest: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    can_generate: bool = True
    """``False`` for embedding models: without an output layer, or with one that was not trained."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InvalidCheckpoint: missing, unreadable, not JSON or not an object.
    """
    content = read_json_value(path)
    if not isinstance(content, dict):
        raise InvalidCheckpoint(f"{path} must hold a JSON object")
    return content


def read_json_value(path: Path) -> Any:
    """Read any JSON value; raises like ``read_json``."""
    if not path.exists():
        raise InvalidCheckpoint(f"{path} does not exist; is {path.parent} a Hugging Face model folder?")
    if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        raise InvalidCheckpoint(f"{path} is not a file of at most {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read as JSON: {error}") from error


def read_model_files(path: Path, handed_digest: str = "") -> ModelFiles:
    """Look at a model folder and compute its digest, which reads every byte once.

    Args:
        path: the folder.
        handed_digest: from ``digest_to_hand_over`` in another process; used where the files are still those.

    Raises:
        InvalidCheckpoint: no such folder, no weights, or a configuration that lacks a field.
    """
    if not path.is_dir():
        raise InvalidCheckpoint(f"{path} is not a folder; give the path of a Hugging Face model folder")
    described = described_files(path)
    weights = _weight_files(path)
    hashed = (path / CONFIG_NAME, *weights)
    try:
        digest = receive(handed_digest, hashed) or files_digest([(p.name, p) for p in hashed])
    except OSError as error:
        raise InvalidCheckpoint(f"{error.filename} cannot be read: {error.strerror}") from error
    return replace(described, weight_paths=weights, digest=digest)


def described_files(path: Path, digest: str = "") -> ModelFiles:
    """A model by its configuration alone, without its weights; its digest is believed.

    Raises:
        InvalidCheckpoint: a configuration that lacks a field.
    """
    config = text_fields(read_json(path / CONFIG_NAME))
    vocab_size = _count(path, config, "vocab_size")
    return ModelFiles(
        path=path,
        config=config,
        weight_paths=(),
        digest=digest,
        vocab_size=vocab_size,
        max_model_len=context_length(config, _count(path, config, "max_position_embeddings")),
        eos_token_ids=_eos_token_ids(path, config, vocab_size),
        can_generate=not (path / MODULES_NAME).exists() and not _is_body(config),
    )


def digest_to_hand_over(path: Path, known: str = "", is_over: Callable[[], bool] = never) -> str:
    """The digest of a model folder, for ``read_model_files`` in other processes.

    Args:
        path: the folder.
        known: from an earlier call; given back where the files are still those.
        is_over: as of ``files_digest``.

    Raises:
        InvalidCheckpoint: like ``read_model_files``.
    """
    if not path.is_dir():
        raise InvalidCheckpoint(f"{path} is not a folder; give the path of a Hugging Face model folder")
    hashed = (path / CONFIG_NAME, *_weight_files(path))
    try:
        state = state_of(hashed)
        if receive(known, hashed):
            return known
        return hand_over(files_digest([(p.name, p) for p in hashed], is_over), state)
    except OSError as error:
        raise InvalidCheckpoint(f"{error.filename} cannot be read: {error.strerror}") from error


def _weight_files(path: Path) -> tuple[Path, ...]:
    weights = tuple(sorted(path.glob("*.safetensors"))) or tuple(sorted(path.glob("*.gguf")))
    if not weights:
        others = sorted(p.name for p in path.glob("*.bin"))
        hint = f" ({others[0]} is not accepted: convert it to safetensors)" if others else ""
        raise InvalidCheckpoint(f"{path} holds no *.safetensors file{hint}")
    if strange := [p for p in weights if not p.is_file()]:  # a pipe would be waited for, for ever
        raise InvalidCheckpoint(f"{strange[0]} is not a file")
    return weights


def _count(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise InvalidCheckpoint(f"{path / 'config.json'} lacks a usable field: {name} must be a positive integer")
    return value


def _eos_token_ids(path: Path, config: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Ids that end a sequence: those of ``generation_config.json`` where it has some, else the model's."""
    generation = path / "generation_config.json"
    stated = (read_json(generation) if generation.exists() else config).get("eos_token_id", config.get("eos_token_id"))
    ids = [] if stated is None else stated if isinstance(stated, list) else [stated]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
        raise InvalidCheckpoint(f"{path}: eos_token_id must be token ids below {vocab_size}, or null")
    return tuple(ids)


def _is_body(config: dict[str, Any]) -> bool:
    """The checkpoint was saved without an output layer: ``Qwen3Model`` instead of ``Qwen3ForCausalLM``."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and bool(architectures) and str(architectures[0]).endswith("Model")
