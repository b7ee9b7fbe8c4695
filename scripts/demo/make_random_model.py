"""Write a Llama checkpoint with random weights: for measurements, where only the shape matters.

    python -m scripts.demo.make_random_model llama-213m FOLDER [--gguf FILE.gguf]

The tokenizer is that of the shipped model; its vocabulary is a part of this one's.  Same weights every time (seed 0).
The GGUF file has them as bfloat16; ``llama-quantize`` makes other types of it, as users of llama.cpp get theirs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stratos.reproduce.material.random_model import SHAPES, write_model
from tests.support.reference.gguf_models import save_llama_gguf

TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "base"


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="the same weights as a GGUF file")
    args = parser.parse_args()
    write_model(args.shape, args.folder, TOKENIZER)
    if args.gguf is not None:
        save_llama_gguf(args.folder, args.gguf)


if __name__ == "__main__":
    main()
