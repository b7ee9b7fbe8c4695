"""The ask of ``stratos quantize``, and what is refused before a weight is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.model_files import ModelFiles, read_json, read_model_files
from stratos.engine.checkpoint.gguf.tensors import has_gguf_weights
from stratos.engine.checkpoint.model_config import DecoderConfig, parse_decoder_config
from stratos.engine.checkpoint.rotated_rows import feature_order
from stratos.engine.checkpoint.weight_schemes import GROUP_STEP, MAX_BYTE_INPUTS, LinearScheme
from stratos.quantise.schemes import GROUP_SIZES, WantedScheme, find_scheme

PROGRESS_NAME = ".quantize.json"
"""In the folder of a run that has not ended: what was asked."""
REVISION = 1
"""Of the methods: an unfinished run of another one is not gone on with."""
MAX_SEQUENCE_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantiseAsk:
    """A model, a scheme, text, and where the result goes."""

    model_path: Path
    scheme: str
    text_paths: tuple[Path, ...]
    out: Path
    group_size: int = 0
    """Inputs that share a scale; 0: the most of ``GROUP_SIZES`` that divides the inputs of all layers."""
    sequences: int = 128
    sequence_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedAsk:
    """An ask that can be done."""

    files: ModelFiles
    config: DecoderConfig
    scheme: WantedScheme
    group: int
    """0 where the scheme has no groups."""


def accept(ask: QuantiseAsk) -> AcceptedAsk:
    """Check everything but the text and the folder of the result.

    Raises:
        BadRequest: a scheme, group or number that cannot be.
        InvalidCheckpoint: a model that cannot be quantised; the message says why.
    """
    scheme = find_scheme(ask.scheme)
    if not ask.text_paths:
        raise BadRequest("give text with --calibration; every scheme holds some back to say how good it is")
    if ask.sequences < 1 or not 2 <= ask.sequence_tokens <= MAX_SEQUENCE_TOKENS:
        raise BadRequest(
            f"at least 1 sequence is needed, of 2 to {MAX_SEQUENCE_TOKENS} tokens", param="--sequence-tokens"
        )
    files = read_model_files(ask.model_path)
    config = _float_config(files)
    if config.max_model_len < ask.sequence_tokens:
        raise BadRequest(f"the model's context is {config.max_model_len} tokens", param="--sequence-tokens")
    return AcceptedAsk(files=files, config=config, scheme=scheme, group=_group(ask.group_size, scheme, config))


def _float_config(files: ModelFiles) -> DecoderConfig:
    stated = files.config.get("quantization_config") or files.config.get("compression_config")
    if isinstance(stated, Mapping):
        raise InvalidCheckpoint(f"{files.path} is quantised already ({stated.get('quant_method')}): give its floats")
    config = parse_decoder_config(files.config, has_lm_head=files.can_generate)
    reasons = {
        "its weights lie in a GGUF file": has_gguf_weights(files),
        "it has experts": config.moe is not None,
        "it has latent attention": config.latent is not None,
        "it only embeds": not config.has_lm_head,
        "it sees images": config.is_text_part,
        "it rotates a part of each head, and is not served with codes": feature_order(config) is not None,
        "its heads have sinks": config.options.has_sinks,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidCheckpoint(f"{files.path} cannot be quantised: {reason}")
    return config


def _group(asked: int, scheme: WantedScheme, config: DecoderConfig) -> int:
    inputs = {name: shape[1] for name, shape in config.projection_shapes(0).items()}
    if not scheme.has_groups:
        if asked:
            raise BadRequest(f"{scheme.name} has a scale per output and no groups", param="--group-size")
        _check_inputs(scheme, inputs)
        return 0
    if asked and (asked < 0 or asked % GROUP_STEP):
        raise BadRequest(f"groups are multiples of {GROUP_STEP} inputs, not {asked}", param="--group-size")
    for size in (asked,) if asked else GROUP_SIZES:
        odd = next((name for name, number in inputs.items() if number % size), None)
        if odd is None:
            return size
    raise BadRequest(
        f"groups of {asked or GROUP_STEP} do not divide the {inputs[str(odd)]} inputs of {odd}; "
        f"tried where none is asked for: {', '.join(map(str, GROUP_SIZES))}",
        param="--group-size",
    )


def _check_inputs(scheme: WantedScheme, inputs: Mapping[str, int]) -> None:
    for name, number in inputs.items():
        if scheme.numbers == LinearScheme.FP8 and number % GROUP_STEP:
            raise InvalidCheckpoint(f"the {number} inputs of {name} are no multiple of {GROUP_STEP}")
        if scheme.numbers == LinearScheme.INT8_ROWS and number > MAX_BYTE_INPUTS:
            raise InvalidCheckpoint(f"the {number} inputs of {name} are more than {MAX_BYTE_INPUTS}")


def identity(ask: QuantiseAsk, accepted: AcceptedAsk, texts: list[dict[str, str]]) -> dict[str, Any]:
    """Everything that decides the bits of the result: as ``calibration.json`` keeps it, and an unfinished run."""
    return {
        "revision": REVISION,
        "model_digest": accepted.files.digest,
        "scheme": accepted.scheme.name,
        "group_size": accepted.group,
        "texts": texts,
        "sequences": ask.sequences,
        "sequence_tokens": ask.sequence_tokens,
    }


def open_folder(out: Path, wanted: Mapping[str, Any]) -> None:
    """Make the folder of the result, or take that of an unfinished run that was asked the same.

    Raises:
        BadRequest: it holds something else, or cannot be written.
    """
    progress = out / PROGRESS_NAME
    if progress.exists():
        if read_json(progress) != wanted:
            raise BadRequest(
                f"{out} holds an unfinished run of another ask; remove it or go on with that", param="--out"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadRequest(f"{out} is not an empty folder", param="--out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        progress.write_text(json.dumps(dict(wanted), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{out} cannot be written: {error.strerror}", param="--out") from error
