"""``stratos quantize``: the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.shared import explained_errors

EXIT_LOSES_MORE = 3


def quantize(
    model: Annotated[Path, typer.Option(help="Hugging Face model folder with float weights.")],
    scheme: Annotated[str, typer.Option(help="int4-rtn, int4-gptq, int4-awq, int8-rtn, int8-smoothquant or fp8-rtn.")],
    calibration: Annotated[
        list[Path], typer.Option(help="Text in UTF-8 like what the model will see; repeat it for several texts.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the result: new, empty, or of the same run when it broke.")],
    group_size: Annotated[
        int, typer.Option(help="Inputs that share a scale, of int4; 0: 128, 64 or 32, the most that divides.")
    ] = 0,
    sequences: Annotated[int, typer.Option(help="Sequences of the text that calibrate.")] = 128,
    sequence_tokens: Annotated[int, typer.Option(help="Tokens of each.")] = 512,
    max_loss: Annotated[float, typer.Option(help="Relative loss of perplexity above which the exit code is 3.")] = 0.25,
    threads: Annotated[int, typer.Option(help="Equal ones give equal bits; 0: as many as there are cores.")] = 0,
) -> None:
    """Write a quantised copy of a model in compressed-tensors' format; a run that broke is gone on with."""
    from stratos.cli.data.torch_module import run_module
    from stratos.quantise.schemes import find_scheme

    with explained_errors():
        find_scheme(scheme)  # before torch takes its seconds to load
        ask = {
            "model_path": str(model),
            "scheme": scheme,
            "text_paths": [str(path) for path in calibration],
            "out": str(out),
            "group_size": group_size,
            "sequences": sequences,
            "sequence_tokens": sequence_tokens,
        }
        report = run_module("stratos.quantise", ask, threads or os.cpu_count() or 1)
        if report is None:
            raise typer.Exit(1)
    loss = report["perplexity"] / report["float_perplexity"] - 1
    typer.echo(
        f"{report['out']}: {report['bytes'] / 1e6:.1f} MB of {report['bytes_before'] / 1e6:.1f} MB; perplexity of held "
        f"back text {report['float_perplexity']:.4g} -> {report['perplexity']:.4g} ({100 * loss:+.2f} %)"
    )
    if loss > max_loss:
        typer.echo(f"this loses more than {100 * max_loss:.0f} %: look at it with `stratos evaluate` first", err=True)
        raise typer.Exit(EXIT_LOSES_MORE)
