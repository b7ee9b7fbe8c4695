"""The shipped model in formats that ``stratos quantize`` does not write, for ``scripts.bench.quality``.

They are written by the formats' published layouts, each number to its nearest code: no library searches for better
scales, as llama.cpp's does.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from stratos.text.gguf.folder import write_model_folder
from tests.support.paths import BASE_MODEL
from tests.support.reference.gguf_models import save_llama_gguf
from tests.support.reference.gguf_rounding import SUPER
from tests.support.reference.quantised_models import save_shipped

BLOCKS = ("Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
NVFP4, GGUF = "nvfp4", "gguf"


def save_nvfp4(folder: Path) -> Path:
    """Write the model in NVFP4; one projection of 42 stays floats."""
    return save_shipped(folder / NVFP4, "compressed-nvfp4")


def save_gguf(folder: Path, blocks: str) -> Path:
    """Write a file with linear layers in one type of blocks, and the model's folder for it; returns the folder.

    The embedding, which is the output layer as well, is BF16.  Rows that blocks of 256 do not fill are Q8_0.
    """
    path = save_llama_gguf(BASE_MODEL, folder / f"{blocks}.gguf", partial(_kind, blocks))
    write_model_folder(path, folder / blocks)
    return folder / blocks


def _kind(blocks: str, name: str, weight: Tensor) -> str:
    if name == "token_embd.weight":
        return "BF16"
    return "Q8_0" if blocks.endswith("_K") and weight.shape[1] % SUPER else blocks
