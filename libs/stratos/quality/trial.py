"""Trial of a model folder before it is published: what a gateway and a worker would refuse is found here.

    words: tokenizer, vocabulary, chat template ──▶ name, shape and type of every tensor ──▶ samples ──▶ a token

The last step loads all weights as a worker does, which looks at every number.  It runs in a process of its own
(``python -m stratos.quality.trial ask.json report.json``): the memory goes with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from stratos.common.errors import BadRequest, InvalidCheckpoint, StratosError
from stratos.core.files.model_files import ModelFiles, read_model_files
from stratos.core.files.model_texts import text_digest
from stratos.engine.checkpoint.loader import CheckpointReader
from stratos.engine.checkpoint.model_config import parse_decoder_config
from stratos.engine.checkpoint.stored_tensors import StoredTensor, stored_tensors
from stratos.engine.settings import RunnerConfig
from stratos.quality.scored_model import ScoredModel
from stratos.text.chat_template import ChatMessage, ChatTemplate, read_template
from stratos.text.tokenizer import Tokenizer

CONTEXT = 64
"""Longest sequence of the trial, for a small KV pool."""
NUM_SAMPLES = 4
"""Rows of each tensor that are looked at."""
_FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


def try_model(folder: Path, digest: str, *, computes_token: bool) -> dict[str, Any]:
    """Check a folder; returns what was found.

    Args:
        folder: of the model.
        digest: as ``digest_to_hand_over`` made it.
        computes_token: load the weights, and compute one.

    Raises:
        StratosError: it cannot be served; the message says why.
    """
    texts = text_digest(folder)  # before they are read: one that changes later is not what was checked
    files = read_model_files(folder, digest)
    if not all(path.suffix == ".safetensors" for path in files.weight_paths):
        raise InvalidCheckpoint(f"{folder} has no weights in safetensors, the one form that is published")
    prompt = _words(files)
    model = parse_decoder_config(files.config, has_lm_head=files.can_generate)
    CheckpointReader(files, model, torch.float32, torch.device("cpu"))
    tensors = stored_tensors(files)
    for tensor in tensors.values():
        check_sample(tensor)
    found: dict[str, Any] = {"num_tensors": len(tensors), "digest": files.digest, "text_digest": texts}
    if computes_token:
        found["token"] = _first_token(files, digest, prompt)
    return found


def check_sample(tensor: StoredTensor) -> None:
    """Look at some rows of a tensor, the first and the last among them; raises ``InvalidCheckpoint``."""
    if tensor.dtype not in _FLOATS or 0 in tensor.shape:
        return
    if len(tensor.shape) < 2:
        rows = [tensor.whole()]
    else:
        last = tensor.shape[0] - 1
        rows = [tensor.rows(index) for index in sorted({last * i // (NUM_SAMPLES - 1) for i in range(NUM_SAMPLES)})]
    if not all(bool(torch.isfinite(row.float()).all()) for row in rows):
        raise InvalidCheckpoint(f"{tensor.file_name}: tensor {tensor.name} holds NaN or infinity")


def _words(files: ModelFiles) -> list[int]:
    """Ids of a short conversation, or of a text where the model has no template."""
    tokenizer = Tokenizer.load(files.path)
    if tokenizer.vocab_size > files.vocab_size:
        raise InvalidCheckpoint(
            f"{files.path}: the tokenizer has {tokenizer.vocab_size} tokens, the model's vocabulary {files.vocab_size}"
        )
    if (source := read_template(files.path)) is None:
        return tokenizer.encode("Hello", add_special_tokens=True)
    try:
        return ChatTemplate(source, tokenizer).encode([ChatMessage("user", "Hello")])
    except BadRequest as error:
        raise InvalidCheckpoint(f"the chat template does not render a message of a user: {error.message}") from error


def _first_token(files: ModelFiles, digest: str, prompt: list[int]) -> int | None:
    """The token behind a prompt; ``None`` of a model that only embeds, which is loaded all the same."""
    context = min(CONTEXT, files.max_model_len)
    config = RunnerConfig(model_path=files.path, model_digest=digest, max_model_len=context)
    scored = ScoredModel.load(config, context)
    if not files.can_generate:
        return None
    [output] = scored.complete([prompt[: context - 1]], 1)
    return output[0] if output else files.eos_token_ids[0]


def main() -> int:
    """Try what is asked; an error of ours is told in the report."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        report = try_model(Path(asked["folder"]), asked["digest"], computes_token=asked["computes_token"])
    except StratosError as error:
        report = {"problem": error.message}
    Path(sys.argv[2]).write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
