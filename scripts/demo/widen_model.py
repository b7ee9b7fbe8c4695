"""Write a model that computes what another one computes, at many times its cost.

    python scripts/demo/widen_model.py models/base /tmp/widened --width 4 --layers 12

The hidden state gets ``width`` times as many components, of which the new ones are 0, the inner states of the layers as
well, and layers are added that add 0.  A norm divides by the root of a mean over more components, so its weight is
smaller by the root of ``width``, and its epsilon by ``width``: with 4 or 16 both are exact in floating point.  So the
model's tokens are those of the first one but for the order of sums, and acceptance of drafts is real while verifying
them costs what a larger model's pass costs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def widened(weights: dict[str, torch.Tensor], width: int, num_layers: int) -> dict[str, torch.Tensor]:
    """Weights of the wider and deeper model with the same function.

    Args:
        weights: of a Llama with tied embeddings, by their checkpoint names.
        width: times the hidden and the inner size; a power of 4.
        num_layers: at least as many as there are; the new ones are copies of the last whose outputs are 0.
    """
    found = {name: _wide(name, tensor, width) for name, tensor in weights.items()}
    num_own = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))
    last = f"model.layers.{num_own - 1}."
    for layer in range(num_own, num_layers):
        for name in [name for name in found if name.startswith(last)]:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            copy = torch.zeros_like(found[name]) if adds else found[name].clone()
            found[name.replace(last, f"model.layers.{layer}.")] = copy
    return found


def _wide(name: str, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """``tensor`` with zeros in the new places."""
    if name.endswith("norm.weight"):
        wide = torch.zeros(width * tensor.shape[0], dtype=tensor.dtype)
        wide[: tensor.shape[0]] = tensor / width**0.5
        return wide
    rows, columns = tensor.shape
    if name.endswith(("embed_tokens.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight")):
        size = (rows, width * columns)
    elif name.endswith("o_proj.weight"):
        size = (width * rows, columns)
    else:
        size = (width * rows, width * columns)
    wide = torch.zeros(size, dtype=tensor.dtype)
    wide[:rows, :columns] = tensor
    return wide


def write_widened(source: Path, folder: Path, *, width: int = 4, num_layers: int = 12) -> None:
    """Write the widened model of the folder ``source``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if not config["tie_word_embeddings"] or width not in (1, 4, 16):
        raise SystemExit("a model with tied embeddings is widened 1, 4 or 16 times")
    config["hidden_size"] *= width
    config["intermediate_size"] *= width
    config["rms_norm_eps"] /= width
    config["num_hidden_layers"] = max(num_layers, config["num_hidden_layers"])
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = widened(load_file(source / "model.safetensors"), width, num_layers)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of the model")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--width", type=int, default=4, help="times the hidden size: 1, 4 or 16")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model that is written")
    args = parser.parse_args()
    write_widened(args.source, args.folder, width=args.width, num_layers=args.layers)
