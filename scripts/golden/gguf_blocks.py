"""Writes random blocks of every type and the floats that the package ``gguf`` makes of them: our reader's fixture.

    pip install --no-deps --target DIR gguf
    PYTHONPATH=DIR python -m scripts.golden.gguf_blocks tests/fixtures/quantised/gguf.safetensors

The package is no dependency of ours, and 0.19.0 wrote the committed file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file

NUM_BLOCKS = 6
HALVES = {
    **{"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)},
    **{"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)},
}
"""Bytes of a block at which a float16 begins, by type."""


def blocks_of(name: str, random: Any) -> Any:
    """Random blocks, uint8 [blocks, bytes], whose scales and minima are numbers of both signs."""
    blocks = random.integers(0, 256, (NUM_BLOCKS, GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]), dtype=np.uint8)
    for begin in HALVES[name]:
        scales = (random.standard_normal((NUM_BLOCKS, 1)) * 0.01).astype(np.float16)
        blocks[:, begin : begin + 2] = scales.view(np.uint8)
    return blocks


def main() -> None:
    """Make blocks of every type and widen them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("path", type=Path)
    path, random, tensors = parser.parse_args().path, np.random.default_rng(0), {}
    for name in HALVES:
        blocks = blocks_of(name, random)
        tensors[f"{name}.blocks"] = blocks
        tensors[f"{name}.floats"] = dequantize(blocks, GGMLQuantizationType[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


if __name__ == "__main__":
    main()
