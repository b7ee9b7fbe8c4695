"""Measure the memory of ``stratos quantize``: it is to need a layer at a time, whatever the depth of the model.

    python -m scripts.bench.quantise_memory --out benchmarks/results/quantise-memory-2core-cpu.json

Models are random Llamas whose layers have the shape of the one of 213 M parameters.  A figure is the highest memory of
the command that is not of mapped files, looked at every 20 ms.  What it has before its first layer is measured by a
model of one layer: torch, the embedding and its float copy, the hidden states of the text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.bench.harness import MODEL, ROOT, flag, run_bench, show, table
from stratos.reproduce.material.random_model import write_model

SHAPE = "llama-213m"
TEXTS = tuple(ROOT / "docs" / f"{name}.md" for name in ("numbers", "operations", "configuration-all", "quantisation"))
SEQUENCE_TOKENS = 256
MIB = 1 << 20


def write_deep(folder: Path, layers: int) -> Path:
    """A model of so many layers."""
    write_model(SHAPE, folder / f"{layers}-layers", MODEL, num_hidden_layers=layers)
    return folder / f"{layers}-layers"


def private_bytes(pid: int) -> int:
    """Memory of a process and its children that is not of files; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)
    return own + sum(private_bytes(int(child)) for child in children)


def measured(model: Path, scheme: str, sequences: int) -> dict[str, Any]:
    """One run, and its peak."""
    out = model.with_name(f"{model.name}-{scheme}-{sequences}")
    size = ("--sequences", str(sequences), "--sequence-tokens", str(SEQUENCE_TOKENS))
    command = (sys.executable, "-m", "stratos.cli", "quantize", "--model", str(model), "--scheme", scheme, *size)
    texts = [word for text in TEXTS for word in ("--calibration", str(text))]
    began_s, peak = time.monotonic(), 0
    process = subprocess.Popen(
        (*command, *texts, "--max-loss", "1000", "--threads", "1", "--out", str(out)), stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        peak = max(peak, private_bytes(process.pid))
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"stratos quantize ended with {process.returncode}")
    row = {
        "layers": int(model.name.split("-")[0]), "scheme": scheme, "sequences": sequences,
        "checkpoint_mib": round(sum(path.stat().st_size for path in model.glob("*.safetensors")) / MIB),
        "peak_mib": round(peak / MIB), "seconds": round(time.monotonic() - began_s),
    }  # fmt: skip
    show(row)
    return row


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Depths, then more text."""
    with tempfile.TemporaryDirectory() as name:
        models = [write_deep(Path(name), layers) for layers in args.layers]
        rows = [measured(model, args.scheme, args.sequences) for model in models]
        rows.append(measured(models[0], args.scheme, 4 * args.sequences))
    titles = ("layers", "scheme", "sequences", "checkpoint_mib", "peak_mib", "seconds")
    lines = [[str(row[title]) for title in titles] for row in rows]
    return {"shape": SHAPE, "sequence_tokens": SEQUENCE_TOKENS, "rows": rows, "table": table(titles, lines)}


if __name__ == "__main__":
    run_bench(
        __doc__,
        bench,
        flag("--scheme", default="int4-gptq"),
        flag("--layers", type=int, nargs="+", default=[1, 4, 16], help="depths of the models"),
        flag("--sequences", type=int, default=32, help="of the text that calibrates"),
    )
