"""Checks before anything starts: each failure is one sentence that says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stratos.cli.data.folder import DataDir
from stratos.cli.local.options import UpOptions
from stratos.common.errors import BadRequest, InvalidCheckpoint
from stratos.core.files.gguf.parts import SUFFIX, is_gguf
from stratos.core.files.model_files import read_json
from stratos.core.files.safetensors_header import ALL_BYTES, read_safetensors_header
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.observe.local_prometheus import find_prometheus
from stratos.text.gguf.kept_folders import gguf_folder

TOKENIZER_NAME = "tokenizer.json"


def find_shipped_model() -> Path | None:
    """The base model that comes with the repository: ``models/base`` next to ``libs`` in a checkout, or here."""
    checkout = Path(__file__).resolve().parents[4]
    for root in (checkout, Path.cwd()):
        if (root / "models" / "base" / "config.json").is_file():
            return root / "models" / "base"
    return None


def check_model_folder(path: Path) -> None:
    """Look at the parts that every process needs; the workers check the rest when they load it.

    Raises:
        BadRequest, InvalidCheckpoint: with the missing part.
    """
    if not path.is_dir():
        raise BadRequest(f"--model {path}: there is no such folder; give the path of a Hugging Face model folder")
    if not (path / "config.json").exists() and (files := sorted(path.glob(f"*{SUFFIX}"))):
        raise BadRequest(f"--model {path}: no config.json in it; give the file itself: --model {files[0]}")
    config = read_json(path / "config.json")
    if not isinstance(config.get("architectures"), list):
        raise InvalidCheckpoint(f"--model {path}: config.json names no architecture; is it a causal language model?")
    if not any(path.glob("*.safetensors")) and not any(path.glob(f"*{SUFFIX}")):
        raise InvalidCheckpoint(f"--model {path}: no *.safetensors file in it; convert the weights to safetensors")
    if not (path / TOKENIZER_NAME).is_file():
        raise InvalidCheckpoint(
            f"--model {path}: no {TOKENIZER_NAME} in it; save the fast tokenizer next to the weights"
        )


def check_checkpoint(path: Path) -> None:
    """Find now, not after seconds of a worker's imports, a model that is not supported or weights that are cut off.

    Raises:
        InvalidCheckpoint: with the field or the file.
    """
    parse_decoder_config(read_json(path / "config.json"))
    for weights in sorted(path.glob("*.safetensors")):
        read_safetensors_header(weights, InvalidCheckpoint, ALL_BYTES)


def with_model_folder(options: UpOptions) -> UpOptions:
    """The options with the model folder of a GGUF file in the file's place, written below the data directory.

    Raises:
        InvalidCheckpoint: the file cannot be served.
        BadRequest: the folder cannot be written.
    """
    more = tuple(with_model_folder(one) for one in options.more_models)
    options = replace(options, more_models=more)
    if not is_gguf(options.model_path):
        return options
    data = DataDir(options.data_dir)
    data.prepare()
    return replace(options, model_path=gguf_folder(options.model_path, data.gguf_path))


def check_options(options: UpOptions) -> None:
    """Everything that can be checked without starting a process."""
    for one in (options, *options.more_models):
        check_model_folder(one.model_path)
        if options.engine == "torch":
            check_checkpoint(one.model_path)
    if options.observe:
        find_prometheus()
    if options.object_store_url.startswith("s3://") or not options.object_store_url:
        return
    if not options.object_store_url.startswith("file://"):
        raise BadRequest(f"--object-store must be file:///DIR or s3://BUCKET/PREFIX, not {options.object_store_url!r}")
