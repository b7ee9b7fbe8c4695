"""``stratos evaluate``: the command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from stratos.cli.commands.shared import explained_errors
from stratos.engine.checkpoint.weight_schemes import AT_LOAD

EXIT_NOT_ACCEPTABLE, EXIT_OPEN = 3, 4
Model = Annotated[Path, typer.Argument(help="Hugging Face model folder, or a GGUF file.")]


def evaluate(
    a: Model,
    b: Model,
    text: Annotated[list[Path], typer.Option(help="Held-out text in UTF-8; repeat it for several kinds of text.")],
    quantization: Annotated[str, typer.Option(help=f"Of B, at load: auto, {AT_LOAD}.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Compute type of both, as for `stratos up`.")] = "auto",
    max_loss: Annotated[float, typer.Option(help="Largest relative loss of perplexity over all text.")] = 0.05,
    max_stratum_loss: Annotated[float, typer.Option(help="The same in one stratum.")] = 0.10,
    max_score_loss: Annotated[float, typer.Option(help="Largest loss of a score, as a share of 1.")] = 0.05,
    window: Annotated[int, typer.Option(help="Tokens that are scored together.")] = 256,
    max_tokens: Annotated[int, typer.Option(help="Tokens scored at most.")] = 65536,
    threads: Annotated[int, typer.Option(help="Of an engine; 0: as many as there are cores.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report: JSON, and a page with plots.")] = None,
) -> None:
    """Say what model B loses beside model A, by strata. Exit code 3: not acceptable; 4: more text is needed."""
    from contextlib import ExitStack

    from stratos.cli.data.torch_module import run_module
    from stratos.cli.evaluate.page import report_page
    from stratos.cli.evaluate.table import report_text
    from stratos.common.errors import BadRequest
    from stratos.text.gguf.kept_folders import folder_for

    with explained_errors(), ExitStack() as kept:
        if min(max_loss, max_stratum_loss, max_score_loss) <= 0 or window < 2:
            raise BadRequest("losses must be above 0, and windows hold at least 2 tokens", param="--max-loss")
        folders = [str(kept.enter_context(folder_for(path)).resolve()) for path in (a, b)]
        ask: dict[str, Any] = {
            "reference": {"model_path": folders[0], "dtype": dtype},
            "candidate": {"model_path": folders[1], "dtype": dtype, "quantization": quantization},
            "text_paths": [str(path) for path in text],
            "window": window,
            "max_tokens": max_tokens,
            "bounds": {"mean": max_loss, "stratum": max_stratum_loss, "score": max_score_loss},
        }
        report = run_module("stratos.quality", ask, threads or os.cpu_count() or 1)
        if report is None:
            raise typer.Exit(1)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            (out / "evaluation.html").write_text(report_page(report), encoding="utf-8")
    typer.echo(report_text(report))
    raise typer.Exit(_exit_code(report["verdict"]))


def _exit_code(verdict: str) -> int:
    if verdict == "not acceptable":
        return EXIT_NOT_ACCEPTABLE
    return 0 if verdict == "acceptable" else EXIT_OPEN
